/* y = whether x is NaN
 *
 *     x: any shape and dtype       y: bool; no gradient
 */
#include "ops/op.h"

static tn_status isnan_forward(const tn_op_call *c) {
    return c->kernels->compare(c->ctx, TN_NE, c->y[0], c->x[0], c->x[0]);
}

const tn_op tn__op_isnan = {
    .name = "isnan",
    .inputs = {"x"},
    .shapes = "any: ... -> bool: ...",
    .forward = isnan_forward,
    .samples = "[7]; [3, 4]; [2, 3, 4]; []; [0]; [2, 0, 3]; [1]; [1, 1]; [5, 67]; "
               "{once} [7]=(0, nan, inf, -inf, 1, -nan, -0)",
};

tn_tensor *tn_isnan(tn_tensor *x) {
    return tn_apply1(&tn__op_isnan, NULL, x);
}
