/* y = -1, 0 or 1, the sign of x; 0 for NaN
 *
 *     x: any shape, all but bool       y: like x
 *     dx = 0
 */
#include "ops/op.h"

static tn_status sign_forward(const tn_op_call *c) {
    return tn__unary(c, TN_SIGN);
}

static void sign_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_zeros_like(g->dout[0]));
}

static void sign_samples(tn_op_samples *s) {
    tn_sample_unary(s, 0.1, 3.0);
    tn_sample_unary(s, -3.0, -0.1);
}

const tn_op tn__op_sign = {
    .name = "sign",
    .inputs = {"x"},
    .shape = tn__shape_number,
    .forward = sign_forward,
    .backward = sign_backward,
    .samples = sign_samples,
};

tn_tensor *tn_sign(tn_tensor *x) {
    return tn_apply1(&tn__op_sign, NULL, x);
}
