/* y[.., j] = whether index[..] is j, as a number
 *
 *     index: any shape, i64 or i32, in [0, classes); classes -1: the largest index plus 1
 *     y: index's shape, then (classes), i64; no gradient
 */
#include "ops/index/index.h"

bool tn__index_within(tn_tensor *index, int64_t size, const char *operation) {
    if (tn_count(index) == 0) { return true; }
    TN_SCOPE;
    double min = tn_item(tn_min(index, TN_DIMS(), false));
    double max = tn_item(tn_max(index, TN_DIMS(), false));
    if (min >= 0.0 && max < (double)size) { return true; }
    return tn__fail(TN_EINDEX, operation, "index %.0f is outside [0, %lld)", min < 0.0 ? min : max,
                    (long long)size);
}

tn_tensor *tn_one_hot(tn_tensor *index, int64_t classes) {
    if (!tn__usable(index, "one_hot")) { return tn_inert(); }
    if (index->dtype != TN_I64 && index->dtype != TN_I32) {
        return tn__refused(TN_EDTYPE, "one_hot", "index is %s (i64 or i32 is needed)",
                           tn_dtype_name(index->dtype));
    }
    TN_SCOPE;
    if (classes == -1 && tn_count(index) > 0) {
        classes = (int64_t)tn_item(tn_max(index, TN_DIMS(), false)) + 1;
    }
    if (classes < 1) {
        return tn__refused(TN_EVALUE, "one_hot",
                           "index is %s, for %lld classes (at least 1 is needed)",
                           tn_shape_text(index), (long long)classes);
    }
    if (!tn__index_within(index, classes, "one_hot")) { return tn_inert(); }
    tn_dtype dtype = classes <= 1 << 24 ? TN_F32 : TN_I64; /* exact, and fast to compare */
    tn_tensor *class = tn__arange(tn_device_of(index), 0, (double)classes, 1, dtype);
    return tn_return(tn_cast(tn_eq(tn_unsqueeze(tn_cast(index, dtype), -1), class), TN_I64));
}
