/* Where a position is, as numbers; and the mask that hides what comes later. */
#include "nn/attention.h"
#include "nn/module.h"

#include <math.h>

/* (T, S), true where query i does not see key j: those after i + S - T. */
tn_tensor *tn__later_mask(int64_t T, int64_t S) {
    TN_SCOPE;
    tn_tensor *query = tn_arange((double)(S - T), (double)S, 1.0, TN_I64);
    tn_tensor *key = tn_arange(0.0, (double)S, 1.0, TN_I64);
    return tn_return(tn_gt(key, tn_unsqueeze(query, 1)));
}

tn_tensor *tn_causal_mask(int64_t length) {
    if (length < 0) {
        tn__raise(TN_EVALUE, "causal_mask", "the length is %lld", (long long)length);
        return tn_inert();
    }
    return tn__later_mask(length, length);
}

tn_tensor *tn_sinusoids(int64_t length, int64_t width, tn_dtype dtype) {
    const char *wrong = TN__BEYOND({"length", length, 0, 0}, {"width", width, 2, 0});
    if (wrong) {
        tn__raise(TN_EVALUE, "sinusoids", "%s", wrong);
        return tn_inert();
    }
    if (width % 2 != 0) {
        tn__raise(TN_EVALUE, "sinusoids", "width is %lld (it must be even)", (long long)width);
        return tn_inert();
    }
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t half = width / 2;
    tn_tensor *pairs = tn_arange(0.0, (double)half, 1.0, TN_F64);
    tn_tensor *rates = tn_exp(tn_mul_scalar(pairs, -2.0 * log(10000.0) / (double)width));
    tn_tensor *places = tn_arange(0.0, (double)length, 1.0, TN_F64);
    tn_tensor *angles = tn_mul(tn_unsqueeze(places, 1), rates); /* (length, width / 2) */
    tn_tensor *both[] = {tn_sin(angles), tn_cos(angles)};
    tn_tensor *table = tn_reshape(tn_stack(both, 2, 2), TN_DIMS(length, width));
    return tn_return(tn_cast(table, dtype));
}
