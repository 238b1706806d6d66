/* y = sinh(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy cosh(x)
 */
#include "ops/op.h"

static tn_status sinh_forward(const tn_op_call *c) {
    return tn__unary(c, TN_SINH);
}

static void sinh_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_cosh(tn_op_saved_input(g, 0))));
}

static void sinh_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1e-4, 10.0};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_sinh = {
    .name = "sinh",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = sinh_forward,
    .backward = sinh_backward,
    .flags = TN_OP_WIDE,
    .samples = sinh_samples,
};

tn_tensor *tn_sinh(tn_tensor *x) {
    return tn_apply1(&tn__op_sinh, NULL, x);
}
