/* y = a - b
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy        db = -dy
 */
#include "ops/op.h"

static tn_status sub_forward(const tn_op_call *c) {
    return tn__binary(c, TN_SUB);
}

static void sub_backward(tn_op_grad *g) {
    if (g->wants[0]) {
        tn_op_give(g, 0, g->dout[0]);
    }
    if (g->wants[1]) {
        tn_op_give(g, 1, tn_neg(g->dout[0]));
    }
}

static void sub_samples(tn_op_samples *s) {
    tn_sample_binary(s, -3.0, 3.0, -3.0, 3.0);
}

const tn_op tn__op_sub = {
    .name = "sub",
    .inputs = {"a", "b"},
    .shape = tn__shape_number2,
    .forward = sub_forward,
    .backward = sub_backward,
    .samples = sub_samples,
};

tn_tensor *tn_sub(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_sub, NULL, a, b);
}
