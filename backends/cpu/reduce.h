/* What reductions of rows, of columns (reduce.c) and of short runs (reduce_short.c) share. */
#ifndef TERN_BACKENDS_CPU_REDUCE_H
#define TERN_BACKENDS_CPU_REDUCE_H

#include "backends/cpu/cpu.h"

/* Like the entry reduce, for SUM, MEAN, MAX and MIN of f32, bf16 and f16 if the reduced elements
 * are in short dense blocks; otherwise TN_EUNSUPPORTED, with nothing done. */
tn_status TN_CPU(reduce_short)(tn_context *ctx, tn_reduction f, const tn_desc *y, const tn_desc *x);

/* The sum, maximum or minimum of two elements; f is a constant. */
INLINE float fold_two(tn_reduction f, float a, float b) {
    switch (f) {
    case TN_MAX:
        return ((b > a) | (b != b)) ? b : a;
    case TN_MIN:
        return ((b < a) | (b != b)) ? b : a;
    default:
        return a + b;
    }
}

INLINE void fold_onto(tn_reduction f, float *restrict sum, const float *restrict x, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        sum[j] = fold_two(f, sum[j], x[j]);
    }
}

#endif
