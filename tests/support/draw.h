/* Random sizes for the programs dump_*.c, and how Python writes them. */
#ifndef TERN_TESTS_SUPPORT_DRAW_H
#define TERN_TESTS_SUPPORT_DRAW_H

#include <stdio.h>

#include <tern/tern.h>

/* From low to high, both included. */
static inline int64_t draw_between(int64_t low, int64_t high) {
    double u = tn_random_uniform(tn_default_generator());
    return low + (int64_t)(u * (double)(high - low + 1));
}

static inline tn_dims draw_dims(int n, int64_t low, int64_t high) {
    tn_dims dims = {.ndim = n};
    for (int i = 0; i < n; i++) {
        dims.size[i] = draw_between(low, high);
    }
    return dims;
}

/* "(2, 3)"; "(2,)" for one. */
static inline const char *tuple_text(tn_dims dims) {
    static char texts[8][64];
    static int next;
    char *text = texts[next++ % 8];
    int length = 0;
    for (int i = 0; i < dims.ndim; i++) {
        length += snprintf(text + length, 64 - (size_t)length, "%s%lld", i ? ", " : "(",
                           (long long)dims.size[i]);
    }
    snprintf(text + length, 64 - (size_t)length, dims.ndim == 1 ? ",)" : ")");
    return text;
}

#endif
