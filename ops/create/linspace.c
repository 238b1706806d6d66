/* start … end in equal steps, both included: a new vector. */
#include "core/memory.h"
#include "ops/op.h"

#include <math.h>
#include <stdlib.h>

/* From both ends to the middle, as in PyTorch: the last is exactly `end`. Integers truncate. */
static void fill_steps(double *value, double start, double end, int64_t steps) {
    double step = steps > 1 ? (end - start) / (double)(steps - 1) : 0.0;
    for (int64_t i = 0; i < steps; i++) {
        int64_t left = steps - 1 - i;
        value[i] = i <= left ? start + (double)i * step : end - (double)left * step;
    }
}

tn_tensor *tn_linspace(double start, double end, int64_t steps, tn_dtype dtype) {
    size_t bytes;
    if (!isfinite(start) || !isfinite(end) || !tn__fits(start, dtype) || !tn__fits(end, dtype)) {
        return tn__refused(TN_EVALUE, "linspace",
                           "from %g to %g in %s (both must be finite and fit the dtype)", start,
                           end, tn_dtype_name(dtype));
    }
    if (!tn__bytes_of(TN_DIMS(steps), TN_F64, &bytes, "linspace")) { return tn_inert(); }
    double *value = tn__malloc_for(bytes, "linspace");
    if (!value) { return tn_inert(); }
    TN_SCOPE;
    fill_steps(value, start, end, steps);
    tn_tensor *y = tn_cast(tn_from_data(value, TN_DIMS(steps), TN_F64), dtype);
    free(value);
    return tn_return(y);
}
