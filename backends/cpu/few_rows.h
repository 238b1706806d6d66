/* Products with few rows: y (m, n) = x (m, k) w^T, bound by reading w. FEW_ROWS rows of x are
 * multiplied at once; for more, a strip of w is read again from the cache.
 */
#ifndef TERN_BACKENDS_CPU_FEW_ROWS_H
#define TERN_BACKENDS_CPU_FEW_ROWS_H

#include "backends/cpu/gemm.h"

enum { FEW_ROWS = 8 };

/* y[i row + j col] = alpha scale[j] sum over p of x[i, p] w[j, p] + bias[j] + beta y. x: f32, bf16
 * or f16; w: these or i8, with contiguous rows (w.col is 1). `scale` and `bias` (f32, contiguous)
 * may be NULL; y is not read when beta is 0. */
typedef struct few_rows_job {
    int64_t m, n, k;
    double alpha, beta;
    gemm_side x, w;
    const float *scale, *bias;
    void *y;
    tn_dtype dtype; /* y's: f32, bf16 or f16 */
    int64_t row, col;
    int threads;
} few_rows_job;

/* TN_ENOMEM or TN_OK. An element's bits depend only on its row of x and its row of w. */
tn_status TN_CPU(few_rows)(tn_context *ctx, const few_rows_job *job);

#endif
