/* The bits that a training run ends with, for comparison; each training header fills them in. */
#ifndef TERN_TESTS_PARALLEL_BITS_H
#define TERN_TESTS_PARALLEL_BITS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct train_bits {
    char *data;
    size_t bytes;
} train_bits;

static inline bool train_same(train_bits a, train_bits b) {
    return a.bytes == b.bytes && a.bytes > 0 && memcmp(a.data, b.data, a.bytes) == 0;
}

/* The largest difference of f32 numbers; NaN if the counts differ. */
static inline double train_difference(train_bits a, train_bits b) {
    double most = a.bytes == b.bytes ? 0 : NAN;
    for (size_t at = 0; at < a.bytes && a.bytes == b.bytes; at += sizeof(float)) {
        float x, y;
        memcpy(&x, a.data + at, sizeof(x));
        memcpy(&y, b.data + at, sizeof(y));
        most = isnan(x - y) ? NAN : fmax(most, fabs((double)x - (double)y));
        if (isnan(most)) {
            break;
        }
    }
    return most;
}

#endif
