/* y = a == b; false with a NaN
 *
 *     a, b: shapes that broadcast, same dtype, any       y: the common shape, bool; no gradient
 */
#include "ops/op.h"

static tn_status eq_forward(const tn_op_call *c) {
    return tn__compare(c, TN_EQ);
}

/* Random pairs, and each of smaller, equal, larger, and the two zeros. */
static void eq_samples(tn_op_samples *s) {
    static const double a[] = {1.0, 2.0, -3.0, 0.0}, b[] = {1.0, 3.0, -4.0, -0.0};
    tn_sample_binary(s, -3.0, 3.0, -3.0, 3.0);
    tn__sample_values2(s, a, b, 4, true);
}

const tn_op tn__op_eq = {
    .name = "eq",
    .inputs = {"a", "b"},
    .shape = tn__shape_compare,
    .forward = eq_forward,
    .samples = eq_samples,
};

tn_tensor *tn_eq(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_eq, NULL, a, b);
}

tn_tensor *tn_eq_scalar(tn_tensor *x, double k) {
    return tn_eq(x, tn__scalar_like(x, k, "eq_scalar"));
}
