/* y = log(x), natural; -inf at 0, NaN below
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / x
 */
#include "ops/op.h"

static tn_status log_forward(const tn_op_call *c) {
    return tn__unary(c, TN_LOG);
}

static void log_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_op_saved_input(g, 0)));
}

static void log_samples(tn_op_samples *s) {
    static const double places[] = {1e-2, 1.0, 50.0, 1.001};
    tn_sample_unary(s, 0.1, 3.0);
    tn__sample_values(s, places, (int)(sizeof places / sizeof *places), true);
}

const tn_op tn__op_log = {
    .name = "log",
    .inputs = {"x"},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = log_forward,
    .backward = log_backward,
    .samples = log_samples,
};

tn_tensor *tn_log(tn_tensor *x) {
    return tn_apply1(&tn__op_log, NULL, x);
}
