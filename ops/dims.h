/* Small helpers over dimensions and descriptors, for operations of more than one dimension. */
#ifndef TERN_OPS_DIMS_H
#define TERN_OPS_DIMS_H

#include "autograd/operand.h"
#include "ops/op.h"

/* Dimension `dim` moved to the front; the others keep their order. */
tn_desc tn__desc_front(const tn_desc *x, int dim);

/* Input i if given, else NULL. */
static inline tn_tensor *tn__optional(const tn_op_call *c, int i) {
    return i < c->inputs ? c->in[i] : NULL;
}

/* A descriptor of one element repeated n times (stride 0), and of n elements in a row. */
tn_desc tn__desc_repeat(const tn_desc *scalar, int64_t n);
tn_desc tn__desc_vector(void *data, tn_dtype dtype, int64_t n);

/* A matrix as a stack of one: (m, n) -> (1, m, n). */
tn_desc tn__desc_stacked(const tn_desc *x);

/* Scratch memory of a call, from here to the end of the block, and a row-major operand in it; data
 * is NULL if there is none left. */
#define TN__SCRATCH_POOL(name, call)                                 \
    __attribute__((cleanup(tn__scratch_end))) tn__scratch_pool name; \
    tn__scratch_begin(&(name), (call)->kernels, (call)->ctx)
tn_desc tn__scratch(tn__scratch_pool *pool, tn_dims dims, tn_dtype dtype);

/* Elements in all dimensions but the last: how many rows (…, c) has. */
int64_t tn__row_count(tn_dims dims);

/* (…, c) as (rows, c). */
tn_tensor *tn__as_rows(tn_tensor *x);

/* dims without the last dimension, and with `size` in its place. */
tn_dims tn__dims_leading(tn_dims dims);
tn_dims tn__dims_with_last(tn_dims dims, int64_t size);

/* The dimension that args name (negative counts from the end), or -1 after raising TN_EINDEX; the
 * second for a checked one. */
int tn__op_dim(const tn_op_call *c, int dim);
static inline int tn__dim_from_start(int dim, int ndim) {
    return dim < 0 ? dim + ndim : dim;
}

/* Writes one number for all of 1 to 3 dimensions, or one for each, at least `min`, to the last of
 * all[3]. False after raising, as `name`: `what` is wrong. */
bool tn__spread_numbers(const char *name, const char *what, int spatial, tn_dims given, int64_t min,
                        int64_t *all);

/* The dtype for statistics such as a mean or a log-sum-exp: f64 for f64, else f32. */
static inline tn_dtype tn__wide_dtype(tn_dtype dtype) {
    return dtype == TN_F64 ? TN_F64 : TN_F32;
}

#endif
