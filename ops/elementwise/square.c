/* y = x²
 *
 *     x: any shape, all but bool       y: like x
 *     dx = dy · 2 x
 */
#include "ops/op.h"

static tn_status square_forward(const tn_op_call *c) {
    return tn__unary(c, TN_SQUARE);
}

static void square_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_mul_scalar(tn_op_saved_input(g, 0), 2.0)));
}

static void square_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, -30.0, 1e-3};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_square = {
    .name = "square",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_number,
    .forward = square_forward,
    .backward = square_backward,
    .samples = square_samples,
};

tn_tensor *tn_square(tn_tensor *x) {
    return tn_apply1(&tn__op_square, NULL, x);
}
