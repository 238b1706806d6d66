/* y = whether x is an infinity of either sign
 *
 *     x: any shape and dtype       y: bool; no gradient
 */
#include "ops/op.h"

#include <math.h>

static tn_status isinf_forward(const tn_op_call *c) {
    return tn__compare_infinity(c, TN_EQ);
}

static void isinf_samples(tn_op_samples *s) {
    static const double places[] = {0.0, NAN, INFINITY, -INFINITY, 1.0, -NAN, -0.0};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), false);
}

const tn_op tn__op_isinf = {
    .name = "isinf",
    .inputs = {"x"},
    .shapes = "any: ... -> bool: ...",
    .forward = isinf_forward,
    .add_samples = isinf_samples,
};

tn_tensor *tn_isinf(tn_tensor *x) {
    return tn_apply1(&tn__op_isinf, NULL, x);
}
