/* y = exp(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · y
 */
#include "ops/op.h"

static tn_status exp_forward(const tn_op_call *c) {
    return tn__unary(c, TN_EXP);
}

static void exp_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_op_saved_output(g, 0)));
}

static void exp_samples(tn_op_samples *s) {
    static const double places[] = {-20.0, 10.0, 0.0, -0.0, 1e-4};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_exp = {
    .name = "exp",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = exp_forward,
    .backward = exp_backward,
    .samples = exp_samples,
};

tn_tensor *tn_exp(tn_tensor *x) {
    return tn_apply1(&tn__op_exp, NULL, x);
}
