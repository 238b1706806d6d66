/* y = -x
 *
 *     x: any shape, all but bool       y: like x
 *     dx = -dy
 */
#include "ops/op.h"

static tn_status neg_forward(const tn_op_call *c) {
    return tn__unary(c, TN_NEG);
}

static void neg_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(g->dout[0]));
}

static void neg_samples(tn_op_samples *s) {
    tn_sample_unary(s, -3.0, 3.0);
}

const tn_op tn__op_neg = {
    .name = "neg",
    .inputs = {"x"},
    .shape = tn__shape_number,
    .forward = neg_forward,
    .backward = neg_backward,
    .samples = neg_samples,
};

tn_tensor *tn_neg(tn_tensor *x) {
    return tn_apply1(&tn__op_neg, NULL, x);
}
