/* y = 1 / sqrt(x); inf at 0, NaN below
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy · y³ / 2
 */
#include "ops/op.h"

static tn_status rsqrt_forward(const tn_op_call *c) {
    return tn__unary(c, TN_RSQRT);
}

static void rsqrt_backward(tn_op_grad *g) {
    tn_tensor *y = tn_op_saved_output(g, 0);
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_mul_scalar(tn_mul(y, tn_square(y)), -0.5)));
}

static void rsqrt_samples(tn_op_samples *s) {
    static const double places[] = {1e-1, 1.0, 100.0};
    tn_sample_unary(s, 0.3, 4.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_rsqrt = {
    .name = "rsqrt",
    .inputs = {"x"},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__shape_float,
    .forward = rsqrt_forward,
    .backward = rsqrt_backward,
    .flags = TN_OP_WIDE,
    .samples = rsqrt_samples,
};

tn_tensor *tn_rsqrt(tn_tensor *x) {
    return tn_apply1(&tn__op_rsqrt, NULL, x);
}
