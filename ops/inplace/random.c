/* Random numbers into an existing tensor: one draw of the generator per call. */
#include "ops/inplace/inplace.h"
#include "profile/work.h"

#include <float.h>
#include <math.h>

static tn_tensor *draw_in_place(tn_tensor *x, tn_random_kind kind, double a, double b,
                                tn_generator *g, const char *operation) {
    if (!tn__settable(x, operation)) { return tn_inert(); }
    if (!tn_dtype_is_float(x->dtype)) {
        tn__raise(TN_EDTYPE, operation, "x is %s (floating point is needed)",
                  tn_dtype_name(x->dtype));
        return tn_inert();
    }
    g = g ? g : tn_default_generator();
    tn_random_key key = tn__draw_key(g);
    if (tn__deferred(x)) { return tn__defer_draw(x, kind, key, a, b, operation); }
    tn_desc y = tn_desc_of(x);
    tn__span span;
    bool seen = tn__profiled() && tn__profile_in_place(&span, operation, x, tn__profile_bytes(x));
    tn_status status = tn__kernels_of(x)->random(tn__context_of(x), &y, kind, key, a, b);
    if (seen) { tn__profile_end(&span, x->storage->device); }
    return tn__changed(x, status, operation);
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
        tn__raise(TN_EVALUE, "uniform_", "low is %g but high is %g (low must not be above high)",
                  low, high);
        return tn_inert();
    }
    if (!tn__settable(x, "uniform_")) { return tn_inert(); }
    double max = dtype_largest(x->dtype);
    if (!(low >= -max && high <= max && isfinite(high - low))) {
        tn__raise(
            TN_EVALUE, "uniform_",
            "low is %g and high is %g (%s goes up to %g, and their difference must be finite)", low,
            high, tn_dtype_name(x->dtype), max);
        return tn_inert();
    }
    return draw_in_place(x, TN_UNIFORM, low, high, g, "uniform_");
}

tn_tensor *tn_normal_(tn_tensor *x, double mean, double std, tn_generator *g) {
    if (!(std >= 0.0)) {
        tn__raise(TN_EVALUE, "normal_", "std is %g (it must not be negative)", std);
        return tn_inert();
    }
    return draw_in_place(x, TN_NORMAL, mean, std, g, "normal_");
}
