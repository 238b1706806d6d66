/* Descriptors in another shape, without a copy: for kernels, which do not raise, and for
 * tn_desc_expand and tn_desc_swap (sys/op.h), which use them. */
#ifndef TERN_BACKENDS_DESC_H
#define TERN_BACKENDS_DESC_H

#include "core/inline.h"
#include "tern/sys/backend.h"

#include <string.h>

/* x broadcast (stride 0) to these sizes, with which it must be compatible. */
TN__INLINE tn_desc tn__desc_spread(const tn_desc *x, int ndim, const int64_t *size) {
    tn_desc d = *x;
    int missing = ndim - x->ndim;
    d.ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        bool repeated = i < missing || (x->size[i - missing] == 1 && size[i] != 1);
        d.size[i] = size[i];
        d.stride[i] = repeated ? 0 : x->stride[i - missing];
    }
    return d;
}

/* A vector of this memory. */
TN__INLINE tn_desc tn__desc_of_span(const void *data, tn_dtype dtype, int64_t count) {
    tn_desc d;
    memset(&d, 0, sizeof(d));
    d.data = (void *)(uintptr_t)data;
    d.dtype = dtype;
    d.ndim = 1;
    d.size[0] = count;
    d.stride[0] = 1;
    return d;
}

/* A dense matrix of this memory. */
TN__INLINE tn_desc tn__desc_of_matrix(const void *data, tn_dtype dtype, int64_t rows,
                                      int64_t columns) {
    tn_desc d = tn__desc_of_span(data, dtype, rows);
    d.ndim = 2;
    d.size[1] = columns;
    d.stride[0] = columns;
    d.stride[1] = 1;
    return d;
}

/* Gives d the strides of dense memory, row-major; returns its elements. */
TN__INLINE int64_t tn__desc_densify(tn_desc *d) {
    int64_t count = 1;
    for (int i = d->ndim - 1; i >= 0; i--) {
        d->stride[i] = count;
        count *= d->size[i];
    }
    return count;
}

/* (n, c) as a batch of one. */
TN__INLINE tn_desc tn__desc_batched(const tn_desc *x) {
    tn_desc d = *x;
    d.ndim = 3;
    d.size[0] = 1;
    d.stride[0] = 0;
    for (int i = 0; i < 2; i++) {
        d.size[i + 1] = x->size[i];
        d.stride[i + 1] = x->stride[i];
    }
    return d;
}

/* The entry sum_squares by the same table's `reduce`, span after span. */
TN__INLINE tn_status tn__sum_squares_by(tn_status (*reduce)(tn_context *, tn_reduction,
                                                            const tn_desc *, const tn_desc *),
                                        tn_context *ctx, const tn_span *spans, int count,
                                        double *sums) {
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++) {
        tn_desc x = tn__desc_of_span(spans[i].data, spans[i].dtype, spans[i].count);
        tn_desc y = tn__desc_of_span(&sums[i], TN_F64, 1);
        status = reduce(ctx, TN_SUM_SQUARES, &y, &x);
    }
    return status;
}

/* x's first place along a dimension, without that dimension. */
TN__INLINE tn_desc tn__desc_without(const tn_desc *x, int dim) {
    tn_desc d = *x;
    d.ndim--;
    for (int i = dim; i < d.ndim; i++) {
        d.size[i] = x->size[i + 1];
        d.stride[i] = x->stride[i + 1];
    }
    return d;
}

/* Dimensions a and b swapped. */
TN__INLINE tn_desc tn__desc_swapped(const tn_desc *x, int a, int b) {
    tn_desc d = *x;
    d.size[a] = x->size[b];
    d.size[b] = x->size[a];
    d.stride[a] = x->stride[b];
    d.stride[b] = x->stride[a];
    return d;
}

#endif
