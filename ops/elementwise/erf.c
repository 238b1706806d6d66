/* y = erf(x) = 2 / sqrt(pi) · integral of exp(-t²) from 0 to x
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · 2 / sqrt(pi) · exp(-x²)
 */
#include "ops/op.h"

static tn_status erf_forward(const tn_op_call *c) {
    return tn__unary(c, TN_ERF);
}

static void erf_backward(tn_op_grad *g) {
    const double k = 1.1283791670955126; /* 2 / sqrt(pi) */
    tn_tensor *x = tn_op_saved_input(g, 0);
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_mul_scalar(tn_exp(tn_neg(tn_square(x))), k)));
}

static void erf_samples(tn_op_samples *s) {
    static const double places[] = {0.0, -0.0, 6.0, -6.0, 1e-3};
    tn_sample_unary(s, -3.0, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_erf = {
    .name = "erf",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = erf_forward,
    .backward = erf_backward,
    .flags = TN_OP_WIDE,
    .samples = erf_samples,
};

tn_tensor *tn_erf(tn_tensor *x) {
    return tn_apply1(&tn__op_erf, NULL, x);
}
