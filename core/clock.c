/* The clock for programs, and deadlines in the forms that the system's waits take. */
#include "core/clock.h"

#include <math.h>

double tn_now(void) {
    return tn__now();
}

void tn__condition_init(pthread_cond_t *c) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

struct timespec tn__timespec(double deadline) {
    double whole = floor(deadline > 0 ? deadline : 0);
    return (struct timespec){.tv_sec = (time_t)whole,
                             .tv_nsec = (long)(fmax(deadline - whole, 0) * 1e9)};
}

int tn__milliseconds_left(double deadline) {
    double left = (deadline - tn__now()) * 1000;
    return left <= 0 ? 0 : left > 1e9 ? 1000000000 : (int)ceil(left);
}
