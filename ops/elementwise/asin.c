/* y = asin(x); NaN outside [-1, 1]
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / sqrt(1 - x²)
 */
#include "ops/op.h"

static tn_status asin_forward(const tn_op_call *c) {
    return tn__unary(c, TN_ASIN);
}

static void asin_backward(tn_op_grad *g) {
    tn_tensor *slope = tn_rsqrt(tn_rsub_scalar(tn_square(tn_op_saved_input(g, 0)), 1.0));
    tn_op_give(g, 0, tn_mul(g->dout[0], slope));
}

static void asin_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 1e-4, 0.9};
    tn_sample_unary(s, -0.8, 0.8);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_asin = {
    .name = "asin",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = asin_forward,
    .backward = asin_backward,
    .flags = TN_OP_WIDE,
    .samples = asin_samples,
};

tn_tensor *tn_asin(tn_tensor *x) {
    return tn_apply1(&tn__op_asin, NULL, x);
}
