/* The matrix product inside the backend. */
#ifndef TERN_BACKENDS_CPU_GEMM_H
#define TERN_BACKENDS_CPU_GEMM_H

#include "backends/backend.h"
#include "backends/cpu/cpu.h"

/* One operand: element (i, j) at data + i row + j col, in elements of dtype. */
typedef struct gemm_side {
    const void *data;
    tn_dtype dtype;
    int64_t row, col;
} gemm_side;

/* C (m, n) = alpha A (m, k) B (k, n) + beta D; C has column stride 1. D is C, or one row for all of
 * C's (ldd 0); it is not read if beta is 0. The operands have C's dtype; for f32 also bf16 and f16.
 * `threads` is the most to use. TN_ENOMEM or TN_OK.
 *
 * gemm_bf16 computes as the processor multiplies bf16: in f32, but a subnormal counts as 0. A and B
 * are bf16, C is f32, or bf16 with `rounds`; D is f32. TN_EUNSUPPORTED, with nothing written: this
 * processor does not multiply bf16, or not faster than f32. gemm_amx is the same on tiles. */
typedef struct gemm_job {
    int64_t m, n, k;
    double alpha, beta;
    gemm_side a, b;
    void *c;
    int64_t ldc;
    const void *d;
    int64_t ldd;
    bool rounds; /* only gemm_bf16 and gemm_amx */
    int threads;
} gemm_job;

tn_status TN_CPU(gemm_f32)(tn_context *ctx, const gemm_job *job);
tn_status TN_CPU(gemm_f64)(tn_context *ctx, const gemm_job *job);
tn_status TN_CPU(gemm_bf16)(tn_context *ctx, const gemm_job *job);
tn_status TN_CPU(gemm_amx)(tn_context *ctx, const gemm_job *job);

/* Whether this processor has vdpbf16ps and gains by it (gemm_bf16.c). */
INLINE bool pairs_pay(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_is("intel");
#else
    return false;
#endif
}

#endif
