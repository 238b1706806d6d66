/* How long idle OpenMP threads spin (wait.c says why this is a separate library). */
#ifndef TERN_CORE_WAIT_H
#define TERN_CORE_WAIT_H

/* Restores the environment to what it was before libgomp read it. */
__attribute__((visibility("default"))) void tn__wait_restore(void);

#endif
