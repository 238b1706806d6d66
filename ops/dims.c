/* Dimensions and descriptors: see dims.h. */
#include "ops/dims.h"

tn_desc tn__desc_front(const tn_desc *x, int dim) {
    tn_desc y = *x;
    for (int i = dim; i > 0; i--) {
        y.size[i] = x->size[i - 1];
        y.stride[i] = x->stride[i - 1];
    }
    y.size[0] = x->size[dim];
    y.stride[0] = x->stride[dim];
    return y;
}

tn_desc tn__desc_repeat(const tn_desc *scalar, int64_t n) {
    tn_desc y = {.data = scalar->data, .dtype = scalar->dtype, .ndim = 1};
    y.size[0] = n;
    y.stride[0] = 0;
    return y;
}

tn_desc tn__desc_vector(void *data, tn_dtype dtype, int64_t n) {
    tn_desc y = {.data = data, .dtype = dtype, .ndim = 1};
    y.size[0] = n;
    y.stride[0] = 1;
    return y;
}

tn_desc tn__desc_stacked(const tn_desc *x) {
    return (tn_desc){
        .data = x->data,
        .dtype = x->dtype,
        .ndim = 3,
        .size = {1, x->size[0], x->size[1]},
        .stride = {x->size[0] * x->stride[0], x->stride[0], x->stride[1]},
    };
}

int64_t tn__row_count(tn_dims dims) {
    return tn_dims_count(tn__dims_leading(dims));
}

tn_dims tn__dims_leading(tn_dims dims) {
    return tn_dims_from(dims.ndim > 0 ? dims.ndim - 1 : 0, dims.size);
}

tn_dims tn__dims_with_last(tn_dims dims, int64_t size) {
    if (dims.ndim > 0) { /* an inert tensor has none */
        dims.size[dims.ndim - 1] = size;
    }
    return dims;
}

int tn__op_dim(const tn_op_call *c, int dim) {
    return tn__dim(c->in[0], dim, c->op->name);
}
