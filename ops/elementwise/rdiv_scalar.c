/* y = k / x
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy · (k / x) / x
 *
 * dx divides twice: x² would overflow or underflow earlier.
 */
#include "ops/op.h"

static tn_status rdiv_scalar_forward(const tn_op_call *c) {
    return tn__unary_k(c, TN_RDIV_K);
}

static void rdiv_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_tensor *x = tn_op_saved_input(g, 0);
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_div(tn_rdiv_scalar(x, -k), x)));
}

static void rdiv_scalar_samples(tn_op_samples *s) {
    static const tn__scalar_args args[] = {{1.0}, {-2.5}};
    tn__sample_unary_with(s, 0.3, 3.0, "k=1.0", &args[0]);
    tn__sample_unary_with(s, -3.0, -0.3, "k=-2.5", &args[1]);
}

const tn_op tn__op_rdiv_scalar = {
    .name = "rdiv_scalar",
    .inputs = {"x"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD(tn__scalar_args, k)},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__shape_float,
    .forward = rdiv_scalar_forward,
    .backward = rdiv_scalar_backward,
    .flags = TN_OP_WIDE,
    .samples = rdiv_scalar_samples,
};

tn_tensor *tn_rdiv_scalar(tn_tensor *x, double k) {
    tn__scalar_args args = {k};
    return tn_apply1(&tn__op_rdiv_scalar, &args, x);
}
