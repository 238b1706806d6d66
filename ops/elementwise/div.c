/* y = a / b, as IEEE says (1 / 0 = inf, 0 / 0 = NaN)
 *
 *     a, b: shapes that broadcast, same dtype, f32 f64 bf16 f16       y: the common shape
 *     da = dy / b    db = -dy · (a / b) / b
 *
 * db divides twice: b² would overflow or underflow earlier.
 */
#include "ops/op.h"

static tn_status div_forward(const tn_op_call *c) {
    return tn__binary(c, TN_DIV);
}

static void div_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0], *b = tn_op_saved_input(g, 1);
    if (g->wants[0]) {
        tn_op_give(g, 0, tn_div(dy, b));
    }
    if (g->wants[1]) {
        tn_tensor *a = tn_op_saved_input(g, 0);
        tn_op_give(g, 1, tn_neg(tn_mul(dy, tn_div(tn_div(a, b), b))));
    }
}

static void div_samples(tn_op_samples *s) {
    tn_sample_binary(s, -3.0, 3.0, 0.3, 3.0);
    tn_sample_binary(s, -3.0, 3.0, -3.0, -0.3);
}

const tn_op tn__op_div = {
    .name = "div",
    .inputs = {"a", "b"},
    .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0) | TN_SAVES_INPUT(1)},
    .shape = tn__shape_float2,
    .forward = div_forward,
    .backward = div_backward,
    .flags = TN_OP_WIDE,
    .samples = div_samples,
};

tn_tensor *tn_div(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_div, NULL, a, b);
}
