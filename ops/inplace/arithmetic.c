/* x = x + y and its relatives, in place: the kernels of add, mul, …, with x as the output. */
#include "ops/inplace/inplace.h"

#include <math.h>

static bool same_dtype(const tn_tensor *x, const tn_tensor *y, bool floats, const char *operation) {
    if (!tn__usable(y, operation)) { return false; }
    if (x->dtype != y->dtype) {
        return tn__fail(TN_EDTYPE, operation, "x is %s but y is %s (cast one of them)",
                        tn_dtype_name(x->dtype), tn_dtype_name(y->dtype));
    }
    if (x->dtype == TN_BOOL || (floats && !tn_dtype_is_float(x->dtype))) {
        tn__raise(TN_EDTYPE, operation, "x is %s (%s is needed; cast it)", tn_dtype_name(x->dtype),
                  floats ? "floating point" : "a number");
        return false;
    }
    return true;
}

static tn_tensor *binary_in_place(tn_tensor *x, tn_tensor *y, tn_binary f, bool floats,
                                  const char *operation) {
    TN_SCOPE;
    tn_desc b;
    if (!tn__writable(x, operation) || !same_dtype(x, y, floats, operation) ||
        !tn__operand(x, y, operation, &b)) {
        return tn_inert();
    }
    tn_desc a = tn_desc_of(x);
    TN__PROFILED(x, operation, 2 * tn__profile_bytes(x) + tn__profile_bytes(y));
    tn_status status = tn__kernels_of(x)->binary(tn__context_of(x), f, &a, &a, &b);
    return tn__changed(x, status, operation);
}

tn_tensor *tn_add_(tn_tensor *x, tn_tensor *y) {
    return binary_in_place(x, y, TN_ADD, false, "add_");
}

tn_tensor *tn_sub_(tn_tensor *x, tn_tensor *y) {
    return binary_in_place(x, y, TN_SUB, false, "sub_");
}

tn_tensor *tn_mul_(tn_tensor *x, tn_tensor *y) {
    return binary_in_place(x, y, TN_MUL, false, "mul_");
}

tn_tensor *tn_div_(tn_tensor *x, tn_tensor *y) {
    return binary_in_place(x, y, TN_DIV, true, "div_");
}

/* k y is computed first, in y's shape, so that a small y costs little. */
tn_tensor *tn_add_scaled_(tn_tensor *x, tn_tensor *y, double k) {
    if (k == 1.0) { return binary_in_place(x, y, TN_ADD, false, "add_scaled_"); }
    TN_SCOPE;
    if (!tn__writable(x, "add_scaled_") || !same_dtype(x, y, false, "add_scaled_")) {
        return tn_inert();
    }
    TN_NO_GRAD;
    return binary_in_place(x, tn_mul_scalar(y, k), TN_ADD, false, "add_scaled_");
}

static tn_tensor *unary_in_place(tn_tensor *x, tn_unary f, double k0, double k1,
                                 const char *operation) {
    if (!tn__settable(x, operation)) { return tn_inert(); }
    if (x->dtype == TN_BOOL) {
        return tn__refused(TN_EDTYPE, operation, "x is bool (a number is needed; cast it)");
    }
    if (tn__deferred(x)) { return tn__defer_unary(x, f, k0, k1, operation); }
    tn_desc y = tn_desc_of(x);
    TN__PROFILED(x, operation, 2 * tn__profile_bytes(x));
    tn_status status = tn__kernels_of(x)->unary(tn__context_of(x), f, &y, &y, k0, k1);
    return tn__changed(x, status, operation);
}

static tn_tensor *with_constant(tn_tensor *x, tn_unary f, double k, const char *operation) {
    if (tn__settable(x, operation) && !tn_dtype_is_float(x->dtype) &&
        (k != trunc(k) || !tn__fits(k, TN_I64))) {
        return tn__refused(TN_EVALUE, operation, "x is %s but k is %g (a whole number is needed)",
                           tn_dtype_name(x->dtype), k);
    }
    return unary_in_place(x, f, k, 0.0, operation);
}

tn_tensor *tn_add_scalar_(tn_tensor *x, double k) {
    return with_constant(x, TN_ADD_K, k, "add_scalar_");
}

tn_tensor *tn_mul_scalar_(tn_tensor *x, double k) {
    return with_constant(x, TN_MUL_K, k, "mul_scalar_");
}

tn_tensor *tn_clamp_(tn_tensor *x, double low, double high) {
    if (isnan(low) || isnan(high)) {
        return tn__refused(TN_EVALUE, "clamp_", "low is %g and high is %g (numbers are needed)",
                           low, high);
    }
    if (tn__usable_or_deferred(x, "clamp_")) { tn__clamp_bounds(x->dtype, &low, &high); }
    return unary_in_place(x, TN_CLAMP_K, low, high, "clamp_");
}
