/* y = x - k
 *
 *     x: any shape, all but bool (a whole k for integers)       y: like x
 *     dx = dy
 */
#include "ops/op.h"

static tn_status sub_scalar_forward(const tn_op_call *c) {
    return tn__unary_k(c, TN_SUB_K);
}

static void sub_scalar_backward(tn_op_grad *g) {
    tn_op_give(g, 0, g->dout[0]);
}

static void sub_scalar_samples(tn_op_samples *s) {
    static const tn__scalar_args args[] = {{1.5}, {-100.0}};
    tn__sample_unary_with(s, -3.0, 3.0, "k=1.5", &args[0]);
    tn__sample_unary_with(s, -3.0, 3.0, "k=-100.0", &args[1]);
}

const tn_op tn__op_sub_scalar = {
    .name = "sub_scalar",
    .inputs = {"x"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD(tn__scalar_args, k)},
    .shape = tn__shape_scalar,
    .forward = sub_scalar_forward,
    .backward = sub_scalar_backward,
    .samples = sub_scalar_samples,
};

tn_tensor *tn_sub_scalar(tn_tensor *x, double k) {
    tn__scalar_args args = {k};
    return tn_apply1(&tn__op_sub_scalar, &args, x);
}
