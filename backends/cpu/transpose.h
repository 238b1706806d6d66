/* Packs rows into panels that vector code reads in order, for elements of type T, which the
 * including file defines.
 */
#ifndef TERN_BACKENDS_CPU_TRANSPOSE_H
#define TERN_BACKENDS_CPU_TRANSPOSE_H

#include "backends/cpu/cpu.h"

typedef T quad __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));

/* `width` rows of k elements, `across` apart, to a panel: dst[p width + i] = src[i across + p].
 * Squares of 4 x 4 are transposed in registers. */
static inline __attribute__((always_inline)) void transpose_panel(T *restrict dst, const int width,
                                                                  const T *restrict src,
                                                                  int64_t across, int64_t k) {
    int64_t p = 0;
#if defined(__clang__) || __GNUC__ >= 12
    for (; p + 4 <= k; p += 4) {
        int i = 0;
        for (; i + 4 <= width; i += 4) {
            const T *from = src + i * across + p;
            quad a = *(const quad *)from, b = *(const quad *)(from + across),
                 c = *(const quad *)(from + 2 * across), d = *(const quad *)(from + 3 * across);
            quad ac0 = __builtin_shufflevector(a, c, 0, 4, 1, 5),
                 ac1 = __builtin_shufflevector(a, c, 2, 6, 3, 7),
                 bd0 = __builtin_shufflevector(b, d, 0, 4, 1, 5),
                 bd1 = __builtin_shufflevector(b, d, 2, 6, 3, 7);
            T *to = dst + p * width + i;
            *(quad *)to = __builtin_shufflevector(ac0, bd0, 0, 4, 1, 5);
            *(quad *)(to + width) = __builtin_shufflevector(ac0, bd0, 2, 6, 3, 7);
            *(quad *)(to + 2 * width) = __builtin_shufflevector(ac1, bd1, 0, 4, 1, 5);
            *(quad *)(to + 3 * width) = __builtin_shufflevector(ac1, bd1, 2, 6, 3, 7);
        }
        for (; i < width; i++) {
            for (int q = 0; q < 4; q++) {
                dst[(p + q) * width + i] = src[i * across + p + q];
            }
        }
    }
#endif
    for (; p < k; p++) {
        UNROLL
        for (int i = 0; i < width; i++) {
            dst[p * width + i] = src[i * across + p];
        }
    }
}

#endif
