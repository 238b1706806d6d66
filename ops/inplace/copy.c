/* x = from, x = value, x = 0: in place. */
#include "ops/inplace/inplace.h"

tn_tensor *tn_copy_(tn_tensor *x, tn_tensor *from) {
    TN_SCOPE;
    tn_desc source;
    if (!tn__writable(x, "copy_") || !tn__operand(x, from, "copy_", &source)) {
        return tn_inert();
    }
    tn_desc y = tn_desc_of(x);
    if (source.data == y.data && source.dtype == y.dtype) {
        return x; /* onto itself: tn__operand has copied everything else that lies there */
    }
    return tn__changed(x, tn__kernels_of(x)->copy(tn__context_of(x), &y, &source), "copy_");
}

static tn_tensor *fill(tn_tensor *x, double value, const char *operation) {
    if (!tn__writable(x, operation)) {
        return tn_inert();
    }
    if (!tn__fits(value, x->dtype)) {
        tn__raise(TN_EVALUE, operation, "%g is not a value of %s", value, tn_dtype_name(x->dtype));
        return tn_inert();
    }
    tn_desc y = tn_desc_of(x);
    return tn__changed(x, tn__kernels_of(x)->fill(tn__context_of(x), &y, value), operation);
}

tn_tensor *tn_fill_(tn_tensor *x, double value) {
    return fill(x, value, "fill_");
}

tn_tensor *tn_zero_(tn_tensor *x) {
    return fill(x, 0.0, "zero_");
}
