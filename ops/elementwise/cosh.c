/* y = cosh(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy sinh(x)
 */
#include "ops/op.h"

static tn_status cosh_forward(const tn_op_call *c) {
    return tn__unary(c, TN_COSH);
}

static void cosh_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_sinh(tn_op_saved_input(g, 0))));
}

static void cosh_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1e-4, 10.0};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_cosh = {
    .name = "cosh",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = cosh_forward,
    .backward = cosh_backward,
    .flags = TN_OP_WIDE,
    .samples = cosh_samples,
};

tn_tensor *tn_cosh(tn_tensor *x) {
    return tn_apply1(&tn__op_cosh, NULL, x);
}
