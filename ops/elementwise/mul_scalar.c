/* y = x · k
 *
 *     x: any shape, all but bool (a whole k for integers)       y: like x
 *     dx = dy · k
 */
#include "ops/op.h"

static tn_status mul_scalar_forward(const tn_op_call *c) {
    return tn__unary_k(c, TN_MUL_K);
}

static void mul_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_op_give(g, 0, tn_mul_scalar(g->dout[0], k));
}

static void mul_scalar_samples(tn_op_samples *s) {
    static const tn__scalar_args args[] = {{-2.5}, {0.0}};
    tn__sample_unary_with(s, -3.0, 3.0, "k=-2.5", &args[0]);
    tn__sample_unary_with(s, -3.0, 3.0, "k=0.0", &args[1]);
}

const tn_op tn__op_mul_scalar = {
    .name = "mul_scalar",
    .inputs = {"x"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD(tn__scalar_args, k)},
    .shape = tn__shape_scalar,
    .forward = mul_scalar_forward,
    .backward = mul_scalar_backward,
    .samples = mul_scalar_samples,
};

tn_tensor *tn_mul_scalar(tn_tensor *x, double k) {
    tn__scalar_args args = {k};
    return tn_apply1(&tn__op_mul_scalar, &args, x);
}
