/* y = whether x is an infinity of either sign
 *
 *     x: any shape and dtype       y: bool; no gradient
 */
#include "ops/op.h"

static tn_status isinf_forward(const tn_op_call *c) {
    return tn__compare_infinity(c, TN_EQ);
}

const tn_op tn__op_isinf = {
    .name = "isinf",
    .inputs = {"x"},
    .shapes = "any: ... -> bool: ...",
    .forward = isinf_forward,
    .samples = "[7]; [3, 4]; [2, 3, 4]; []; [0]; [2, 0, 3]; [1]; [1, 1]; [5, 67]; "
               "{once} [7]=(0, nan, inf, -inf, 1, -nan, -0)",
};

tn_tensor *tn_isinf(tn_tensor *x) {
    return tn_apply1(&tn__op_isinf, NULL, x);
}
