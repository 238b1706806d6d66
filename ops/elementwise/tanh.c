/* y = tanh(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · (1 - y²)
 */
#include "ops/op.h"

static tn_status tanh_forward(const tn_op_call *c) {
    return tn__unary(c, TN_TANH);
}

static tn_status tanh_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_TANH_GRAD, b->y[0]);
}

static void tanh_backward(tn_op_grad *g) {
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_op_give(g, 0, tn_mul(dy, tn_rsub_scalar(tn_square(y), 1.0)));
}

/* Both tails are flat: the result is 1 and the gradient 0. */
static void tanh_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 20.0, -20.0, 1e-3, -300.0, 300.0};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_tanh = {
    .name = "tanh",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = tanh_forward,
    .backward = tanh_backward,
    .backward_kernel = tanh_backward_kernel,
    .flags = TN_OP_WIDE,
    .samples = tanh_samples,
};

tn_tensor *tn_tanh(tn_tensor *x) {
    return tn_apply1(&tn__op_tanh, NULL, x);
}
