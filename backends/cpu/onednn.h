/* bf16 matrix products by oneDNN, on a CPU that multiplies tiles of bf16 (amx_bf16), for which we
 * have no kernel. On one that only has avx512_bf16 our own (gemm_bf16.c) is as fast or faster.
 *
 * The product is cut into pieces by its shape alone. A piece is one single-threaded oneDNN
 * primitive; our threads take pieces dynamically. So the bits do not depend on the number of
 * threads, which oneDNN itself does not promise: its own threading may split the sums too.
 */
#ifndef TERN_BACKENDS_CPU_ONEDNN_H
#define TERN_BACKENDS_CPU_ONEDNN_H

#include "tern/sys/backend.h"

/* Element (i, j) at data + i row + j col. */
typedef struct tn__onednn_side {
    const void *data;
    int64_t row, col;
} tn__onednn_side;

/* C (m, n) = A (m, k) B (k, n) + bias + beta C. C has column stride 1. */
typedef struct tn__onednn_job {
    int64_t m, n, k;
    tn_dtype in, out; /* of A and B, of C */
    tn__onednn_side a, b;
    const float *bias; /* (n), or NULL */
    void *c;
    int64_t ldc;
    double beta; /* 0: C is not read */
    int threads; /* the most to use */
} tn__onednn_job;

/* TN_EUNSUPPORTED, with nothing written: no oneDNN here, not for this dtype, not worth it, or not a
 * product that oneDNN is fast at; the caller then uses its own kernel. It depends only on the
 * machine and the job's shape. TN_ENOMEM: C is unspecified. `level`: the x86-64 level for which the
 * caller was compiled. */
tn_status tn__onednn_product(tn_context *ctx, const tn__onednn_job *job, int level);

/* How many products oneDNN has computed in this process. For tests. */
TN_API int64_t tn__onednn_count(void);

/* Why there is no oneDNN; empty if there is. */
TN_API const char *tn__onednn_reason(void);

#endif
