/* y = sqrt(x); NaN below 0
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / (2 y)
 *
 * At 0 the gradient is infinite, as in PyTorch.
 */
#include "ops/op.h"

static tn_status sqrt_forward(const tn_op_call *c) {
    return tn__unary(c, TN_SQRT);
}

static void sqrt_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_mul_scalar(tn_op_saved_output(g, 0), 2.0)));
}

static void sqrt_samples(tn_op_samples *s) {
    static const double places[] = {1e-2, 1.0, 100.0};
    tn_sample_unary(s, 0.1, 4.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_sqrt = {
    .name = "sqrt",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = sqrt_forward,
    .backward = sqrt_backward,
    .samples = sqrt_samples,
};

tn_tensor *tn_sqrt(tn_tensor *x) {
    return tn_apply1(&tn__op_sqrt, NULL, x);
}
