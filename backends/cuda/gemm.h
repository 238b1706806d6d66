/* One matrix product through cuBLASLt, in its terms: column-major,
 *
 *     D (m, n) = epilogue(alpha A (m, k) B (k, n) + beta D)
 *
 * products.c converts the kernel table's row-major operands.
 */
#ifndef TERN_BACKENDS_CUDA_GEMM_H
#define TERN_BACKENDS_CUDA_GEMM_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn__gemm_matrix {
    void *data;
    int64_t ld;      /* from one column in memory to the next */
    int64_t batch;   /* from one matrix of the batch to the next; 0: the same matrix */
    bool transposed; /* memory holds the transpose of the operand */
} tn__gemm_matrix;

typedef enum tn__gemm_epilogue {
    TN__GEMM_PLAIN,
    TN__GEMM_BIAS,       /* + bias[m] */
    TN__GEMM_GELU,       /* the tanh form, of the sum with bias[m] if there is one */
    TN__GEMM_GELU_AUX,   /* the same, and GELU's input is stored in aux */
    TN__GEMM_GELU_SLOPE, /* times the slope of GELU at aux, an input */
    TN__GEMM_COLUMN_SUMS /* bias[n], an output: the sums of B's columns over k */
} tn__gemm_epilogue;

typedef struct tn__gemm {
    tn_dtype dtype; /* f32 f64 bf16 f16: of a, b, and what an epilogue reads */
    tn_dtype out;   /* of d, and the sums: the same, or f32 for bf16 and f16 */
    int64_t m, n, k, batch;
    tn__gemm_matrix a, b, d;
    double alpha, beta;
    tn__gemm_epilogue epilogue;
    void *bias, *aux;
    int64_t aux_ld;
} tn__gemm;

/* Queues the product. TN_EUNSUPPORTED: cuBLASLt has no algorithm for it, and nothing was queued. */
tn_status tn__cuda_gemm(tn_context *ctx, const tn__gemm *g);

/* Whether x is a float dtype and y is the same, or f32 if x is bf16 or f16. */
static inline bool tn__cuda_sums_into(tn_dtype y, tn_dtype x) {
    bool narrow = x == TN_BF16 || x == TN_F16;
    return (narrow || x == TN_F32 || x == TN_F64) && (y == x || (narrow && y == TN_F32));
}

/* matmul.cu: y = alpha a b + beta y + bias for any strides, also if k is 0. Operands have 3
 * dimensions, as in the entry matmul; bias has 1 and y's dtype, or is NULL. */
tn_status tn__cuda_product(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                           const tn_desc *bias, double alpha, double beta);

#ifdef __cplusplus
}
#endif
#endif
