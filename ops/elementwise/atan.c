/* y = atan(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / (1 + x²)
 */
#include "ops/op.h"

static tn_status atan_forward(const tn_op_call *c) {
    return tn__unary(c, TN_ATAN);
}

static void atan_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_add_scalar(tn_square(tn_op_saved_input(g, 0)), 1.0)));
}

static void atan_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1e-4, 50.0};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_atan = {
    .name = "atan",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = atan_forward,
    .backward = atan_backward,
    .flags = TN_OP_WIDE,
    .samples = atan_samples,
};

tn_tensor *tn_atan(tn_tensor *x) {
    return tn_apply1(&tn__op_atan, NULL, x);
}
