/* y = sin(x), x in radians
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · cos(x)
 */
#include "ops/op.h"

static tn_status sin_forward(const tn_op_call *c) {
    return tn__unary(c, TN_SIN);
}

static void sin_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_cos(tn_op_saved_input(g, 0))));
}

static void sin_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1.5707963267948966, -40.0};
    tn_sample_unary(s, -6.0, 6.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_sin = {
    .name = "sin",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = sin_forward,
    .backward = sin_backward,
    .samples = sin_samples,
};

tn_tensor *tn_sin(tn_tensor *x) {
    return tn_apply1(&tn__op_sin, NULL, x);
}
