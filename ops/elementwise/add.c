/* y = a + b
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy        db = dy
 *
 * The engine sums a gradient over broadcast dimensions; rules here do not.
 */
#include "ops/op.h"

static tn_status add_forward(const tn_op_call *c) {
    return tn__binary(c, TN_ADD);
}

static void add_backward(tn_op_grad *g) {
    if (g->wants[0]) {
        tn_op_give(g, 0, g->dout[0]);
    }
    if (g->wants[1]) {
        tn_op_give(g, 1, g->dout[0]);
    }
}

static void add_samples(tn_op_samples *s) {
    tn_sample_binary(s, -3.0, 3.0, -3.0, 3.0);
}

const tn_op tn__op_add = {
    .name = "add",
    .inputs = {"a", "b"},
    .shape = tn__shape_number2,
    .forward = add_forward,
    .backward = add_backward,
    .samples = add_samples,
};

tn_tensor *tn_add(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_add, NULL, a, b);
}
