/* For operations that hand rows to a kernel: descriptors brought to (n, c), and kernels in a
 * backward.
 *
 * Kernels such as layer_norm and linear want two dimensions; tensors come as (…, c). Leading
 * dimensions become one where strides allow, which they nearly always do; otherwise the elements
 * are copied to scratch memory.
 */
#ifndef TERN_OPS_ROWS_H
#define TERN_OPS_ROWS_H

#include "ops/op.h"

/* The kernels of one device and the context to call them in. */
typedef struct tn__kernels {
    const tn_backend *table;
    tn_context *ctx;
} tn__kernels;

static inline tn__kernels tn__kernels_of(const tn_op_call *c) {
    return (tn__kernels){c->kernels, c->ctx};
}

/* A descriptor with all dimensions but the last `kept` made one: kept 1: (…, c) -> (n, c); kept
 * 0: (…) -> (n). */
typedef struct tn__rows {
    tn_desc d;
    void *scratch; /* the copy, when one was needed */
    size_t bytes;
} tn__rows;

/* The same memory with its leading dimensions merged; false when strides do not allow it. */
bool tn__desc_rows(const tn_desc *x, int kept, tn_desc *y);

/* For inputs: merges, or copies. Afterwards tn__rows_close, also on failure. */
tn_status tn__rows_open(tn__kernels k, const tn_desc *x, int kept, tn__rows *rows);
void tn__rows_close(tn__kernels k, tn__rows *rows);

/* For outputs and other contiguous memory, where merging cannot fail. */
tn_desc tn__rows_of(const tn_desc *x, int kept);

/* Dimension `dim` moved to the front; the others keep their order. */
tn_desc tn__desc_front(const tn_desc *x, int dim);

/* Input i when it was given, else NULL; and its descriptor. */
static inline tn_tensor *tn__optional(const tn_op_call *c, int i) {
    return i < c->inputs ? c->in[i] : NULL;
}
static inline const tn_desc *tn__optional_desc(const tn_op_call *c, int i) {
    return tn__optional(c, i) ? &c->x[i] : NULL;
}

/* A descriptor of one element repeated n times (stride 0), and of n elements in a row. */
tn_desc tn__desc_repeat(const tn_desc *scalar, int64_t n);
tn_desc tn__desc_vector(void *data, tn_dtype dtype, int64_t n);

/* Elements in all dimensions but the last: how many rows (…, c) has. */
int64_t tn__row_count(tn_dims dims);

/* dims without the last dimension, and with `size` in its place. */
tn_dims tn__dims_leading(tn_dims dims);
tn_dims tn__dims_with_last(tn_dims dims, int64_t size);

/* The dimension that args name (negative counts from the end), or -1 after raising TN_EINDEX;
 * and the same once checked. */
int tn__op_dim(const tn_op_call *c, int dim);
static inline int tn__dim_from_start(int dim, int ndim) {
    return dim < 0 ? dim + ndim : dim;
}

/* A forward without its fused kernel: runs a composition, unrecorded, and copies the result to
 * output 0. For operations whose backward is made of operations already and needs less than all
 * inputs (tn_op.compose would have them all saved). */
tn_status tn__forward_composed(tn_op_call *c, tn_tensor *(*compose)(const tn_op_call *c));

/* For compositions: bf16 and f16 as f32 (recorded), because kernels compute in f32 and round
 * once; others unchanged. */
static inline tn_tensor *tn__widen(tn_tensor *x) {
    tn_dtype dtype = tn_dtype_of(x);
    return dtype == TN_BF16 || dtype == TN_F16 ? tn_cast(x, TN_F32) : x;
}

/* What such statistics as a mean or a log-sum-exp are kept in: f64 for f64, else f32. */
static inline tn_dtype tn__wide_dtype(tn_dtype dtype) {
    return dtype == TN_F64 ? TN_F64 : TN_F32;
}

/* In backwards: the kernels of the gradient's device. False after raising, or when one of the n
 * tensors that the rule reads cannot be read. */
bool tn__grad_kernels(const tn_op_grad *g, tn_tensor *const *t, int n, tn__kernels *k);

/* A tensor for a gradient, on the device of dout; NULL when `wanted` is false. */
tn_tensor *tn__grad_new(const tn_op_grad *g, bool wanted, tn_dims dims, tn_dtype dtype);

#endif
