/* y = x / k
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / k
 *
 * Not x times 1 / k, which differs in the last bit.
 */
#include "ops/op.h"

static tn_status div_scalar_forward(const tn_op_call *c) {
    return tn__unary_k(c, TN_DIV_K);
}

static void div_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_op_give(g, 0, tn_div_scalar(g->dout[0], k));
}

static void div_scalar_samples(tn_op_samples *s) {
    static const tn__scalar_args args[] = {{3.0}, {-0.7}};
    tn__sample_unary_with(s, -3.0, 3.0, "k=3.0", &args[0]);
    tn__sample_unary_with(s, -3.0, 3.0, "k=-0.7", &args[1]);
}

const tn_op tn__op_div_scalar = {
    .name = "div_scalar",
    .inputs = {"x"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD(tn__scalar_args, k)},
    .shape = tn__shape_float,
    .forward = div_scalar_forward,
    .backward = div_scalar_backward,
    .samples = div_scalar_samples,
};

tn_tensor *tn_div_scalar(tn_tensor *x, double k) {
    tn__scalar_args args = {k};
    return tn_apply1(&tn__op_div_scalar, &args, x);
}
