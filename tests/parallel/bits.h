/* The bits that a training ends with, to be compared; each header that trains fills them. */
#ifndef TERN_TESTS_PARALLEL_BITS_H
#define TERN_TESTS_PARALLEL_BITS_H

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

#endif
