/* y = acos(x); NaN outside [-1, 1]
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy / sqrt(1 - x²)
 */
#include "ops/op.h"

static tn_status acos_forward(const tn_op_call *c) {
    return tn__unary(c, TN_ACOS);
}

static void acos_backward(tn_op_grad *g) {
    tn_tensor *slope = tn_rsqrt(tn_rsub_scalar(tn_square(tn_op_saved_input(g, 0)), 1.0));
    tn_op_give(g, 0, tn_neg(tn_mul(g->dout[0], slope)));
}

static void acos_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1e-4, 0.9};
    tn_sample_unary(s, -0.8, 0.8);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_acos = {
    .name = "acos",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = acos_forward,
    .backward = acos_backward,
    .flags = TN_OP_WIDE,
    .samples = acos_samples,
};

tn_tensor *tn_acos(tn_tensor *x) {
    return tn_apply1(&tn__op_acos, NULL, x);
}
