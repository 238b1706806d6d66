/* y = a · b
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy · b    db = dy · a
 */
#include "ops/op.h"

static tn_status mul_forward(const tn_op_call *c) {
    return tn__binary(c, TN_MUL);
}

static void mul_backward(tn_op_grad *g) {
    if (g->wants[0]) {
        tn_op_give(g, 0, tn_mul(g->dout[0], tn_op_saved_input(g, 1)));
    }
    if (g->wants[1]) {
        tn_op_give(g, 1, tn_mul(g->dout[0], tn_op_saved_input(g, 0)));
    }
}

static void mul_samples(tn_op_samples *s) {
    static const double a[] = {0.0, -0.0, 50.0, 1e-3}, b[] = {2.0, 3.0, -40.0, 1e-2};
    tn_sample_binary(s, -3.0, 3.0, -3.0, 3.0);
    tn__sample_values2(s, a, b, 4, true);
}

const tn_op tn__op_mul = {
    .name = "mul",
    .inputs = {"a", "b"},
    .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0)},
    .shape = tn__shape_number2,
    .forward = mul_forward,
    .backward = mul_backward,
    .samples = mul_samples,
};

tn_tensor *tn_mul(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_mul, NULL, a, b);
}
