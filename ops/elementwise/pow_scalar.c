/* y = x ^ k; NaN for x < 0 and a k that is not whole
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · k · x ^ (k - 1); 0 for k = 0, as in PyTorch
 */
#include "ops/op.h"

static tn_status pow_scalar_forward(const tn_op_call *c) {
    return tn__unary_k(c, TN_POW_K);
}

static void pow_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_tensor *dy = g->dout[0];
    if (k == 0.0) {
        tn_op_give(g, 0, tn_zeros_like(dy));
        return;
    }
    tn_op_give(g, 0, tn_mul(dy, tn_mul_scalar(tn_pow_scalar(tn_op_saved_input(g, 0), k - 1.0), k)));
}

static void pow_scalar_samples(tn_op_samples *s) {
    static const tn__scalar_args args[] = {{2.0}, {3.0}, {0.5}, {-1.5}, {1.0}, {0.0}, {-2.0}};
    tn__sample_unary_with(s, -3.0, 3.0, "k=2.0", &args[0]);
    tn__sample_unary_with(s, -2.0, 2.0, "k=3.0", &args[1]);
    tn__sample_unary_with(s, 0.2, 3.0, "k=0.5", &args[2]);
    tn__sample_unary_with(s, 0.5, 3.0, "k=-1.5", &args[3]);
    tn__sample_unary_with(s, -3.0, 3.0, "k=1.0", &args[4]);
    tn__sample_unary_with(s, -3.0, 3.0, "k=0.0", &args[5]);
    tn__sample_unary_with(s, -3.0, -0.5, "k=-2.0", &args[6]);
}

const tn_op tn__op_pow_scalar = {
    .name = "pow_scalar",
    .inputs = {"x"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD(tn__scalar_args, k)},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = pow_scalar_forward,
    .backward = pow_scalar_backward,
    .flags = TN_OP_WIDE,
    .samples = pow_scalar_samples,
};

tn_tensor *tn_pow_scalar(tn_tensor *x, double k) {
    tn__scalar_args args = {k};
    return tn_apply1(&tn__op_pow_scalar, &args, x);
}
