/* y = exp(x) - 1, accurate near 0
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy (y + 1)
 */
#include "ops/op.h"

static tn_status expm1_forward(const tn_op_call *c) {
    return tn__unary(c, TN_EXPM1);
}

static void expm1_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_add_scalar(tn_op_saved_output(g, 0), 1.0)));
}

static void expm1_samples(tn_op_samples *s) {
    static const double places[] = {-20.0, 10.0, 0.0, -0.0, 1e-6, -1e-6};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_expm1 = {
    .name = "expm1",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = expm1_forward,
    .backward = expm1_backward,
    .flags = TN_OP_WIDE,
    .samples = expm1_samples,
};

tn_tensor *tn_expm1(tn_tensor *x) {
    return tn_apply1(&tn__op_expm1, NULL, x);
}
