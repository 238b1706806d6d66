/* x = from, x = value, x = 0: in place. */
#include "ops/inplace/inplace.h"
#include "tern/sys/device.h"

/* Copies bytes from another device that need no conversion, straight into x. */
static tn_tensor *copy_dense(tn_tensor *x, tn_tensor *from) {
    TN_NO_GRAD;
    from = tn_contiguous(from);
    if (tn_is_inert(from)) { return from; }
    tn_status status =
        tn__copy_bytes(x->storage->device, tn__address(x), from->storage->device, tn__address(from),
                       (size_t)tn_count(x) * tn_dtype_size(x->dtype), "copy_");
    return tn__changed(x, status, "copy_");
}

tn_tensor *tn_copy_(tn_tensor *x, tn_tensor *from) {
    TN_SCOPE;
    tn_desc source;
    if (tn__settable(x, "copy_") && tn__deferred(x) && tn__usable_or_deferred(from, "copy_")) {
        if (tn__deferred(from)) { return tn__defer_copy(x, from, "copy_"); }
        if (tn__defer_covers(x) && tn_storage_refill(x) != TN_OK) { return tn_inert(); }
    }
    if (tn__writable(x, "copy_") && tn__usable(from, "copy_") &&
        !tn__same_device(x->storage->device, from->storage->device)) {
        if (x->dtype == from->dtype && tn_dims_equal(x->dims, from->dims) && tn_is_contiguous(x)) {
            return copy_dense(x, from);
        }
        TN_NO_GRAD;
        from = tn_to(from, x->storage->device);
    }
    if (!tn__writable(x, "copy_") || !tn__operand(x, from, "copy_", &source)) { return tn_inert(); }
    tn_desc y = tn_desc_of(x);
    if (source.data == y.data && source.dtype == y.dtype) {
        return x; /* onto itself: tn__operand copies every other overlap */
    }
    TN__PROFILED(x, "copy_", tn__profile_bytes(x) + tn__profile_bytes(from));
    tn_status status = tn__kernels_of(x)->copy(tn__context_of(x), &y, &source);
    return tn__changed(x, status, "copy_");
}

tn_tensor *tn__fill_in_place(tn_tensor *x, double value, const char *operation) {
    if (!tn__settable(x, operation)) { return tn_inert(); }
    if (!tn__fits(value, x->dtype)) {
        return tn__refused(TN_EVALUE, operation, "%g is not a value of %s", value,
                           tn_dtype_name(x->dtype));
    }
    if (tn__deferred(x)) { return tn__defer_fill(x, value, operation); }
    tn_desc y = tn_desc_of(x);
    TN__PROFILED(x, operation, tn__profile_bytes(x));
    return tn__changed(x, tn__kernels_of(x)->fill(tn__context_of(x), &y, value), operation);
}

tn_tensor *tn_fill_(tn_tensor *x, double value) {
    return tn__fill_in_place(x, value, "fill_");
}

tn_tensor *tn_zero_(tn_tensor *x) {
    return tn__fill_in_place(x, 0.0, "zero_");
}
