/* The operations that put rows and elements back where index_select, embedding and gather took
 * them: their gradients, as differentiable operations. Private: nothing public needs them yet. */
#ifndef TERN_OPS_INDEX_INDEX_H
#define TERN_OPS_INDEX_INDEX_H

#include "ops/op.h"

/* Zeros with `size` at dim, plus src's slices:
 * y[.., index[i], ..] += src[.., i, ..]. index 1-dimensional. */
tn_tensor *tn__scatter_rows(tn_tensor *src, int dim, tn_tensor *index, int64_t size);

/* Zeros of shape dims, plus src's elements:
 * y[.., index[.., j, ..], ..] += src[.., j, ..] at dim. */
tn_tensor *tn__scatter_add(tn_tensor *src, int dim, tn_tensor *index, tn_dims dims);

/* x (n, c) with rows of values (k, c) at index (k); for equal indices the last one. */
tn_tensor *tn__put_rows(tn_tensor *x, tn_tensor *index, tn_tensor *values);

/* Treats a 0-dimensional tensor as a line of one element, as PyTorch does. */
static inline tn_tensor *tn__as_line(tn_tensor *t) {
    return t->dims.ndim == 0 ? tn_reshape(t, TN_DIMS(1)) : t;
}

/* Whether every index is in [0, size); otherwise raises TN_EINDEX and names one that is not. Waits
 * for index's device. */
bool tn__index_within(tn_tensor *index, int64_t size, const char *operation);

/* Turns a kernel's TN_EINDEX into "name: what V at position P is outside [0, size)"; returns any
 * other status unchanged. */
static inline tn_status tn__index_status(const tn_op_call *c, tn_status status, const char *what,
                                         int64_t size) {
    if (status == TN_EINDEX) {
        tn_op_fail(c, status, "%s %lld at position %lld is outside [0, %lld)", what,
                   (long long)c->ctx->bad_value, (long long)c->ctx->bad_position, (long long)size);
    }
    return status;
}

#endif
