/* fork: what of this process belongs to its parent. fork.c tells the whole story. */
#ifndef TERN_CORE_FORK_H
#define TERN_CORE_FORK_H

#include "tern/core.h"

#include <pthread.h>

/* The number of this process: 1, and one more in a child of fork. What has threads or connections
 * remembers in which process it was made. */
TN_API uint32_t tn__process(void);

/* Whether what was made in `process` stayed behind in a parent. 0, for what was never told, is
 * nobody's. */
static inline bool tn__inherited(uint32_t process) {
    return process != 0 && process != tn__process();
}

/* The same; raises TN_ESTATE for an operation with "the loader", say. */
TN_API bool tn__refuse_inherited(uint32_t process, const char *operation, const char *what);

/* From now on fork takes this lock, so that in a child nobody holds it and what it guards is whole.
 * It must be an innermost one: who holds it waits for no other lock of the library and calls
 * nobody's code. From a constructor; the lock stays for ever. */
TN_API void tn__fork_takes(pthread_mutex_t *lock);

#endif
