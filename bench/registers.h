/* Multiply-adds that stay in registers: the most that this processor computes in f32. */
#ifndef TERN_BENCH_REGISTERS_H
#define TERN_BENCH_REGISTERS_H

#include <stdint.h>

/* Twelve chains of multiply-adds over the widest registers. */
#define FMA_LOOP(name, width, features)                             \
    features static float name(int64_t n) {                         \
        typedef float vec __attribute__((vector_size(width)));      \
        vec x[12], k = (vec){0} + 0.999f;                           \
        for (int i = 0; i < 12; i++) {                              \
            x[i] = (vec){0} + (float)i;                             \
        }                                                           \
        for (int64_t r = 0; r < n; r++) {                           \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) { \
                x[i] = x[i] * k + k;                                \
            }                                                       \
        }                                                           \
        float sum = 0;                                              \
        for (int i = 0; i < 12; i++) {                              \
            sum += x[i][0];                                         \
        }                                                           \
        return sum;                                                 \
    }
#if defined(__x86_64__)
FMA_LOOP(fma_512, 64, __attribute__((target("avx512f"), noinline)))
FMA_LOOP(fma_256, 32, __attribute__((target("avx2,fma"), noinline)))
#endif
FMA_LOOP(fma_128, 16, __attribute__((noinline)))

static float run_fma(int64_t n, double *flops) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        *flops = (double)n * 12 * 32;
        return fma_512(n);
    }
    if (__builtin_cpu_supports("fma")) {
        *flops = (double)n * 12 * 16;
        return fma_256(n);
    }
#endif
    *flops = (double)n * 12 * 8;
    return fma_128(n);
}

#endif
