/* New tensors of one value. */
#include "ops/inplace/inplace.h"

static tn_tensor *fill_new(tn_tensor *y, double value, const char *operation) {
    return tn_is_inert(y) ? y : tn__fill_in_place(y, value, operation);
}

tn_tensor *tn_zeros(tn_dims dims, tn_dtype dtype) {
    return fill_new(tn__empty(tn_default_device(), dims, dtype, "zeros"), 0.0, "zeros");
}

tn_tensor *tn_ones(tn_dims dims, tn_dtype dtype) {
    return fill_new(tn__empty(tn_default_device(), dims, dtype, "ones"), 1.0, "ones");
}

tn_tensor *tn_full(tn_dims dims, double value, tn_dtype dtype) {
    return fill_new(tn__empty(tn_default_device(), dims, dtype, "full"), value, "full");
}

tn_tensor *tn_zeros_like(const tn_tensor *t) {
    return fill_new(tn_empty_like(t), 0.0, "zeros_like");
}

tn_tensor *tn_ones_like(const tn_tensor *t) {
    return fill_new(tn_empty_like(t), 1.0, "ones_like");
}

tn_tensor *tn_scalar(double value, tn_dtype dtype) {
    return fill_new(tn_empty(TN_DIMS(), dtype), value, "scalar");
}
