/* y = cos(x), x in radians
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy · sin(x)
 */
#include "ops/op.h"

static tn_status cos_forward(const tn_op_call *c) {
    return tn__unary(c, TN_COS);
}

static void cos_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(tn_mul(g->dout[0], tn_sin(tn_op_saved_input(g, 0)))));
}

static void cos_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1.5707963267948966, -40.0};
    tn_sample_unary(s, -6.0, 6.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_cos = {
    .name = "cos",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = cos_forward,
    .backward = cos_backward,
    .samples = cos_samples,
};

tn_tensor *tn_cos(tn_tensor *x) {
    return tn_apply1(&tn__op_cos, NULL, x);
}
