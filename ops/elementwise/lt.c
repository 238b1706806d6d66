/* y = a < b; false with a NaN
 *
 *     a, b: shapes that broadcast, same dtype, any       y: the common shape, bool; no gradient
 */
#include "ops/op.h"

static tn_status lt_forward(const tn_op_call *c) {
    return tn__compare(c, TN_LT);
}

/* Random pairs, and each of smaller, equal, larger, and the two zeros. */
static void lt_samples(tn_op_samples *s) {
    static const double a[] = {1.0, 2.0, -3.0, 0.0}, b[] = {1.0, 3.0, -4.0, -0.0};
    tn_sample_binary(s, -3.0, 3.0, -3.0, 3.0);
    tn__sample_values2(s, a, b, 4, true);
}

const tn_op tn__op_lt = {
    .name = "lt",
    .inputs = {"a", "b"},
    .shape = tn__shape_compare,
    .forward = lt_forward,
    .samples = lt_samples,
};

tn_tensor *tn_lt(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_lt, NULL, a, b);
}

tn_tensor *tn_lt_scalar(tn_tensor *x, double k) {
    return tn_lt(x, tn__scalar_like(x, k, "lt_scalar"));
}
