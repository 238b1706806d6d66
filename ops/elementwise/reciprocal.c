/* y = 1 / x
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy y²
 */
#include "ops/op.h"

static tn_status reciprocal_forward(const tn_op_call *c) {
    return tn__unary(c, TN_RECIPROCAL);
}

static void reciprocal_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(tn_mul(g->dout[0], tn_square(tn_op_saved_output(g, 0)))));
}

static void reciprocal_samples(tn_op_samples *s) {
    static const double places[] = {100.0, -0.05};
    tn_sample_unary(s, 0.3, 3.0);
    tn_sample_unary(s, -3.0, -0.3);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_reciprocal = {
    .name = "reciprocal",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = reciprocal_forward,
    .backward = reciprocal_backward,
    .flags = TN_OP_WIDE,
    .samples = reciprocal_samples,
};

tn_tensor *tn_reciprocal(tn_tensor *x) {
    return tn_apply1(&tn__op_reciprocal, NULL, x);
}
