/* Starting threads of the library's own. */
#ifndef TERN_CORE_THREADS_H
#define TERN_CORE_THREADS_H

#include <pthread.h>

/* Starts a thread that no signal reaches: those are for the program's threads. 0, or an errno. */
int tn__thread_start(pthread_t *thread, void *(*run)(void *user), void *user);

#endif
