/* fork: what in this process belongs to its parent. fork.c has the whole story. */
#ifndef TERN_CORE_FORK_H
#define TERN_CORE_FORK_H

#include "tern/core.h"

#include <pthread.h>

/* The number of this process: 1, and one more in a child of fork. What has threads or connections
 * remembers the process that made it. */
TN_API uint32_t tn__process(void);

/* Whether what was made in `process` stayed in a parent. 0, for what was never made, is no
 * process. */
static inline bool tn__inherited(uint32_t process) {
    return process != 0 && process != tn__process();
}

/* The same; raises TN_ESTATE, naming the operation and `what`, "the loader" for example. */
TN_API bool tn__refuse_inherited(uint32_t process, const char *operation, const char *what);

/* From now on fork takes this lock, so that in a child it is free and what it guards is consistent.
 * It must be an innermost one: its holder takes no other lock of the library and runs no callbacks.
 * From a constructor; the lock is never destroyed. */
TN_API void tn__fork_takes(pthread_mutex_t *lock);

#endif
