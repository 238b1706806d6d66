/* y = |x|
 *
 *     x: any shape, all but bool       y: like x
 *     dx = dy · sign(x)
 */
#include "ops/op.h"

static tn_status abs_forward(const tn_op_call *c) {
    return tn__unary(c, TN_ABS);
}

static void abs_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_sign(tn_op_saved_input(g, 0))));
}

/* Away from the kink on either side, and the kink itself: there the gradient is 0,
 * as is the central difference. */
static void abs_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -2.0, 1.5};
    tn_sample_unary(s, 0.1, 3.0);
    tn_sample_unary(s, -3.0, -0.1);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), false);
}

const tn_op tn__op_abs = {
    .name = "abs",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_number,
    .forward = abs_forward,
    .backward = abs_backward,
    .samples = abs_samples,
};

tn_tensor *tn_abs(tn_tensor *x) {
    return tn_apply1(&tn__op_abs, NULL, x);
}
