/* and, or, xor, not of bools: composed of operations. */
#include "ops/op.h"

/* False after raising. */
static bool is_truth(const tn_tensor *t, const char *operation) {
    if (!tn__usable(t, operation)) { return false; }
    if (t->dtype != TN_BOOL) {
        return tn__fail(TN_EDTYPE, operation,
                        "an input is %s (bool is needed: use tn_ne_scalar(x, 0))",
                        tn_dtype_name(t->dtype));
    }
    return true;
}

static bool are_truths(const tn_tensor *a, const tn_tensor *b, const char *operation) {
    return is_truth(a, operation) && is_truth(b, operation);
}

tn_tensor *tn_logical_and(tn_tensor *a, tn_tensor *b) {
    return are_truths(a, b, "logical_and") ? tn_where(a, b, a) : tn_inert();
}

tn_tensor *tn_logical_or(tn_tensor *a, tn_tensor *b) {
    return are_truths(a, b, "logical_or") ? tn_where(a, a, b) : tn_inert();
}

tn_tensor *tn_logical_xor(tn_tensor *a, tn_tensor *b) {
    return are_truths(a, b, "logical_xor") ? tn_ne(a, b) : tn_inert();
}

tn_tensor *tn_logical_not(tn_tensor *x) {
    return is_truth(x, "logical_not") ? tn_eq_scalar(x, 0.0) : tn_inert();
}
