/* y = the whole number nearest to x; ties go to the even one
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = 0
 */
#include "ops/op.h"

static tn_status round_forward(const tn_op_call *c) {
    return tn__unary(c, TN_ROUND);
}

static void round_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_zeros_like(g->dout[0]));
}

static void round_samples(tn_op_samples *s) {
    static const double places[] = {-1.25, 3.75, 100.25, -0.25};
    tn_sample_unary(s, 0.1, 0.4);
    tn_sample_unary(s, -2.9, -2.6);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_round = {
    .name = "round",
    .inputs = {"x"},
    .shape = tn__shape_float,
    .forward = round_forward,
    .backward = round_backward,
    .samples = round_samples,
};

tn_tensor *tn_round(tn_tensor *x) {
    return tn_apply1(&tn__op_round, NULL, x);
}
