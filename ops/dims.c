/* Dimensions and descriptors: see dims.h. */
#include "ops/dims.h"

#include <string.h>

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

tn_desc tn__scratch(tn__scratch_pool *pool, tn_dims dims, tn_dtype dtype) {
    tn_desc d = {.dtype = dtype, .ndim = dims.ndim};
    memcpy(d.size, dims.size, sizeof d.size);
    tn__scratch_take(pool, &d);
    return d;
}

int64_t tn__row_count(tn_dims dims) {
    return tn_dims_count(tn__dims_leading(dims));
}

tn_tensor *tn__as_rows(tn_tensor *x) {
    tn_dims d = tn_shape(x);
    if (d.ndim == 2 || tn_is_inert(x)) { return x; }
    return tn_reshape(x, TN_DIMS(tn__row_count(d), d.size[d.ndim - 1]));
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

bool tn__spread_numbers(const char *name, const char *what, int spatial, tn_dims given, int64_t min,
                        int64_t *all) {
    if (given.ndim != 1 && given.ndim != spatial) {
        return tn__fail(TN_EVALUE, name, "%s has %d numbers (1 or %d are needed)", what, given.ndim,
                        spatial);
    }
    for (int i = 0; i < spatial; i++) {
        int64_t n = given.size[given.ndim == 1 ? 0 : i];
        if (n < min || n > INT32_MAX) {
            return tn__fail(TN_EVALUE, name, "%s is %lld (it must be from %lld to %d)", what,
                            (long long)n, (long long)min, INT32_MAX);
        }
        all[3 - spatial + i] = n;
    }
    return true;
}
