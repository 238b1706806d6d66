/* y = tan(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy (1 + y²)
 */
#include "ops/op.h"

static tn_status tan_forward(const tn_op_call *c) {
    return tn__unary(c, TN_TAN);
}

static void tan_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_add_scalar(tn_square(tn_op_saved_output(g, 0)), 1.0)));
}

static void tan_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1e-4};
    tn_sample_unary(s, -1.2, 1.2);
    tn_sample_unary(s, 2.0, 4.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_tan = {
    .name = "tan",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = tan_forward,
    .backward = tan_backward,
    .flags = TN_OP_WIDE,
    .samples = tan_samples,
};

tn_tensor *tn_tan(tn_tensor *x) {
    return tn_apply1(&tn__op_tan, NULL, x);
}
