/* y = 1 / (1 + exp(-x))
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · y (1 - y)
 */
#include "ops/op.h"

static tn_status sigmoid_forward(const tn_op_call *c) {
    return tn__unary(c, TN_SIGMOID);
}

static tn_status sigmoid_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_SIGMOID_GRAD, b->y[0]);
}

static void sigmoid_backward(tn_op_grad *g) {
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_op_give(g, 0, tn_mul(dy, tn_mul(y, tn_rsub_scalar(y, 1.0))));
}

/* In the tails exp must not overflow into NaN. */
static void sigmoid_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 90.0, -90.0, -300.0, 300.0};
    tn_sample_unary(s, -4.0, 4.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_sigmoid = {
    .name = "sigmoid",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = sigmoid_forward,
    .backward = sigmoid_backward,
    .backward_kernel = sigmoid_backward_kernel,
    .flags = TN_OP_WIDE,
    .samples = sigmoid_samples,
};

tn_tensor *tn_sigmoid(tn_tensor *x) {
    return tn_apply1(&tn__op_sigmoid, NULL, x);
}
