/* start, start + step, … below end: a new vector. */
#include "ops/inplace/inplace.h"

#include <math.h>

/* Why these numbers make no vector of this dtype; NULL if they do. */
static const char *arange_refused(double start, double end, double step, double count,
                                  tn_dtype dtype) {
    if (!isfinite(start) || !isfinite(end) || !isfinite(step)) {
        return "start, end and step must be finite";
    }
    if (step == 0.0) { return "step must not be 0"; }
    if (count > 0x1p53) { return "that many elements cannot be counted"; }
    if (!tn_dtype_is_float(dtype)) {
        if (start != trunc(start) || step != trunc(step)) {
            return "integers need a whole start and step";
        }
        if (count > 0.0 &&
            !(tn__fits(start, dtype) && tn__fits(start + (count - 1.0) * step, dtype))) {
            return "the dtype cannot hold these numbers";
        }
    }
    return NULL;
}

tn_tensor *tn__arange(tn_device device, double start, double end, double step, tn_dtype dtype) {
    double count = fmax(ceil((end - start) / step), 0.0);
    if (dtype == TN_BOOL) {
        return tn__refused(TN_EDTYPE, "arange", "the dtype is bool (a number is needed)");
    }
    const char *why = arange_refused(start, end, step, count, dtype);
    if (why) {
        return tn__refused(TN_EVALUE, "arange", "from %g to %g by %g in %s (%s)", start, end, step,
                           tn_dtype_name(dtype), why);
    }
    tn_tensor *y = tn__new(TN_DIMS((int64_t)count), dtype, device);
    if (tn_is_inert(y)) { return y; }
    tn_desc desc = tn_desc_of(y);
    TN__PROFILED(y, "arange", tn__profile_bytes(y));
    tn_status status = tn_backend_of(device)->arange(tn_context_of(device), &desc, start, step);
    return tn__kernel_ok(status, "arange") ? y : tn_inert();
}

tn_tensor *tn_arange(double start, double end, double step, tn_dtype dtype) {
    return tn__arange(tn_default_device(), start, end, step, dtype);
}
