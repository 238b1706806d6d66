/* y = whether x is NaN
 *
 *     x: any shape and dtype       y: bool; no gradient
 */
#include "ops/op.h"

#include <math.h>

static tn_status isnan_forward(const tn_op_call *c) {
    return c->kernels->compare(c->ctx, TN_NE, c->y[0], c->x[0], c->x[0]);
}

static void isnan_samples(tn_op_samples *s) {
    static const double places[] = {0.0, NAN, INFINITY, -INFINITY, 1.0, -NAN, -0.0};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), false);
}

const tn_op tn__op_isnan = {
    .name = "isnan",
    .inputs = {"x"},
    .shapes = "any: ... -> bool: ...",
    .forward = isnan_forward,
    .add_samples = isnan_samples,
};

tn_tensor *tn_isnan(tn_tensor *x) {
    return tn_apply1(&tn__op_isnan, NULL, x);
}
