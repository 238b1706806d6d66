/* Random numbers into an existing tensor: one draw of the generator per call. */
#include "ops/inplace/inplace.h"

#include <float.h>
#include <math.h>

tn_tensor *tn__draw_in_place(tn_tensor *x, tn_random_kind kind, double a, double b, tn_generator *g,
                             const char *operation) {
    if (!tn__settable(x, operation)) { return tn_inert(); }
    tn_random_key key = tn__draw_key(g ? g : tn_default_generator());
    if (tn__deferred(x)) { return tn__defer_draw(x, kind, key, a, b, operation); }
    tn_desc y = tn_desc_of(x);
    TN__PROFILED(x, operation, tn__profile_bytes(x));
    tn_status status = tn__kernels_of(x)->random(tn__context_of(x), &y, kind, key, a, b);
    return tn__changed(x, status, operation);
}

/* Whether x may be changed, and holds floats; otherwise raises. */
static bool may_draw(const tn_tensor *x, const char *operation) {
    return tn__settable(x, operation) &&
           (tn_dtype_is_float(x->dtype) ||
            tn__fail(TN_EDTYPE, operation, "x is %s (floating point is needed)",
                     tn_dtype_name(x->dtype)));
}

/* The largest number of a float dtype. */
static double dtype_largest(tn_dtype dtype) {
    return dtype == TN_F16    ? 65504.0
           : dtype == TN_BF16 ? 0x1.fep127
           : dtype == TN_F32  ? (double)FLT_MAX
                              : DBL_MAX;
}

tn_tensor *tn_uniform_(tn_tensor *x, double low, double high, tn_generator *g) {
    if (!(low <= high)) {
        return tn__refused(TN_EVALUE, "uniform_",
                           "low is %g but high is %g (low must not be above high)", low, high);
    }
    if (!may_draw(x, "uniform_")) { return tn_inert(); }
    double max = dtype_largest(x->dtype);
    if (!(low >= -max && high <= max && isfinite(high - low))) {
        return tn__refused(
            TN_EVALUE, "uniform_",
            "low is %g and high is %g (%s goes up to %g, and their difference must be finite)", low,
            high, tn_dtype_name(x->dtype), max);
    }
    return tn__draw_in_place(x, TN_UNIFORM, low, high, g, "uniform_");
}

tn_tensor *tn_normal_(tn_tensor *x, double mean, double std, tn_generator *g) {
    if (!(std >= 0.0)) {
        return tn__refused(TN_EVALUE, "normal_", "std is %g (it must not be negative)", std);
    }
    return may_draw(x, "normal_") ? tn__draw_in_place(x, TN_NORMAL, mean, std, g, "normal_")
                                  : tn_inert();
}
