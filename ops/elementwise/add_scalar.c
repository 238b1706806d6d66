/* y = x + k
 *
 *     x: any shape, all but bool (a whole k for integers)       y: like x
 *     dx = dy
 */
#include "ops/op.h"

static tn_status add_scalar_forward(const tn_op_call *c) {
    return tn__unary_k(c, TN_ADD_K);
}

static void add_scalar_backward(tn_op_grad *g) {
    tn_op_give(g, 0, g->dout[0]);
}

static void add_scalar_samples(tn_op_samples *s) {
    static const tn__scalar_args args[] = {{1.5}, {-100.0}};
    tn__sample_unary_with(s, -3.0, 3.0, "k=1.5", &args[0]);
    tn__sample_unary_with(s, -3.0, 3.0, "k=-100.0", &args[1]);
}

const tn_op tn__op_add_scalar = {
    .name = "add_scalar",
    .inputs = {"x"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD(tn__scalar_args, k)},
    .shape = tn__shape_scalar,
    .forward = add_scalar_forward,
    .backward = add_scalar_backward,
    .samples = add_scalar_samples,
};

tn_tensor *tn_add_scalar(tn_tensor *x, double k) {
    tn__scalar_args args = {k};
    return tn_apply1(&tn__op_add_scalar, &args, x);
}
