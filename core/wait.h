/* How long idle threads of OpenMP spin (wait.c says why this is a library of its own). */
#ifndef TERN_CORE_WAIT_H
#define TERN_CORE_WAIT_H

/* The environment is again what it was before libgomp read it. */
__attribute__((visibility("default"))) void tn__wait_restore(void);

#endif
