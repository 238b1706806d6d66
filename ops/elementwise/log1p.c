/* y = log(1 + x), accurate near 0
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / (1 + x)
 *
 * -inf at -1, NaN below.
 */
#include "ops/op.h"

static tn_status log1p_forward(const tn_op_call *c) {
    return tn__unary(c, TN_LOG1P);
}

static void log1p_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_add_scalar(tn_op_saved_input(g, 0), 1.0)));
}

static void log1p_samples(tn_op_samples *s) {
    static const double places[] = {1e4, 0.0, -0.0, 1e-6, -1e-6, -0.99};
    tn_sample_unary(s, -0.7, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_log1p = {
    .name = "log1p",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = log1p_forward,
    .backward = log1p_backward,
    .flags = TN_OP_WIDE,
    .samples = log1p_samples,
};

tn_tensor *tn_log1p(tn_tensor *x) {
    return tn_apply1(&tn__op_log1p, NULL, x);
}
