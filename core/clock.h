/* Time for deadlines and measurements: seconds of the monotonic clock, which cannot be set. */
#ifndef TERN_CORE_CLOCK_H
#define TERN_CORE_CLOCK_H

#include "tern/core.h"

#include <pthread.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Inline, because plugins link nothing of libtern. */
static inline double tn__now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A condition whose timed waits are on this clock. */
TN_API void tn__condition_init(pthread_cond_t *c);

/* A deadline by tn__now as pthread_cond_timedwait takes it, for such conditions. */
TN_API struct timespec tn__timespec(double deadline);

/* Milliseconds from tn__now to the deadline, rounded up, for poll(); 0 when it has passed. */
TN_API int tn__milliseconds_left(double deadline);

#ifdef __cplusplus
}
#endif

#endif
