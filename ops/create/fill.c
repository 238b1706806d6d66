/* New tensors of one value. */
#include "ops/deferred.h"
#include "profile/work.h"

static tn_tensor *fill_new(tn_tensor *y, double value, const char *operation) {
    if (tn_is_inert(y)) { return y; }
    if (!tn__fits(value, y->dtype)) {
        tn__raise(TN_EVALUE, operation, "%g is not a value of %s", value, tn_dtype_name(y->dtype));
        return tn_inert();
    }
    if (tn__deferred(y)) { return tn__defer_fill(y, value, operation); }
    tn_device device = tn_device_of(y);
    tn_desc desc = tn_desc_of(y);
    tn__span span;
    bool seen = tn__profiled() && tn__profile_in_place(&span, operation, y, tn__profile_bytes(y));
    tn_status status = tn_backend_of(device)->fill(tn_context_of(device), &desc, value);
    if (seen) { tn__profile_end(&span, y->storage->device); }
    return tn__kernel_ok(status, operation) ? y : tn_inert();
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
