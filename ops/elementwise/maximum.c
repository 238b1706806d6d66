/* y = the larger of a and b; NaN when either is NaN
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy where a is y, dy / 2 where a = b, 0 where a < b;  db the same
 *
 * With a NaN both get dy, as in PyTorch.
 */
#include "ops/op.h"

static tn_status maximum_forward(const tn_op_call *c) {
    return tn__binary(c, TN_MAXIMUM);
}

static void maximum_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0], *a = tn_op_saved_input(g, 0), *b = tn_op_saved_input(g, 1);
    tn_tensor *shared = tn_where(tn_eq(a, b), tn_mul_scalar(dy, 0.5), dy),
              *zero = tn__constant(dy, 0.0);
    if (g->wants[0]) {
        tn_op_give(g, 0, tn_where(tn_lt(a, b), zero, shared));
    }
    if (g->wants[1]) {
        tn_op_give(g, 1, tn_where(tn_gt(a, b), zero, shared));
    }
}

static void maximum_samples(tn_op_samples *s) {
    static const double a[] = {1.0, -2.0, 0.0, 5.0}, b[] = {1.0, -2.0, 3.0, -5.0};
    tn_sample_binary(s, -3.0, 3.0, -3.0, 3.0);
    tn__sample_values2(s, a, b, 4, false); /* two ties */
}

const tn_op tn__op_maximum = {
    .name = "maximum",
    .inputs = {"a", "b"},
    .saves = TN_SAVES_INPUT(0) | TN_SAVES_INPUT(1),
    .shape = tn__shape_number2,
    .forward = maximum_forward,
    .backward = maximum_backward,
    .samples = maximum_samples,
};

tn_tensor *tn_maximum(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_maximum, NULL, a, b);
}
