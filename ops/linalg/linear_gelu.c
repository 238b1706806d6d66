/* linear_gelu(x, w, b) = gelu(x w^T + b), the tanh form (ops/elementwise/gelu_tanh.c)
 *
 *     x: (…, in), w: (out, in), b: (out) or absent; f32 f64 bf16 f16       y: (…, out)
 *     With p = x w^T + b, which is kept, and dp = dy gelu'(p): the gradients of linear from dp.
 *
 * The first half of a transformer's MLP. A fused kernel applies gelu to the product before it
 * leaves the chip; without one, linear's kernel runs and then gelu's, in the same memory if no
 * gradient will be needed.
 */
#include "ops/linalg/linear.h"

static tn_status linear_gelu_forward(const tn_op_call *c) {
    const tn_desc *y = c->y[0], *pre = c->y[1], *w = c->x[1];
    tn_status status = tn_op_run(c->op, c);
    if (status != TN_EUNSUPPORTED) { return status; }
    pre = pre ? pre : y;
    status = c->kernels->linear(c->ctx, pre, c->x[0], w, c->x[2]);
    return status == TN_OK ? c->kernels->unary(c->ctx, TN_GELU_TANH, y, pre, 0, 0) : status;
}

static tn_status linear_gelu_backward_kernel(const tn_op_back *b) {
    TN__SCRATCH_POOL(scratch, b);
    tn_desc dp = *b->y[1];
    if (!tn__scratch_take(&scratch, &dp)) { return TN_ENOMEM; }
    tn_status status = b->kernels->binary(b->ctx, TN_GELU_TANH_GRAD, &dp, b->y[1], b->dy[0]);
    return status == TN_OK ? tn__linear_back(b, &dp) : status;
}

static tn_tensor *linear_gelu_compose(tn_op_call *c) {
    return tn_gelu_tanh(tn_linear_op(c->in[0], c->in[1], tn__optional(c, 2)));
}

const tn_op tn__op_linear_gelu = {
    .name = "linear_gelu",
    .inputs = {"x", "weight", "bias"},
    .optional = 1u << 2,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1),
    .shapes = "... in, out in, out -> ... out, ... out",
    .kernel = TN_FUSED(linear_gelu),
    .forward = linear_gelu_forward,
    .compose = linear_gelu_compose,
    .backward_kernel = linear_gelu_backward_kernel,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(1)},
    .widens = TN__LINEAR_WEIGHTS,
    .adds = TN__LINEAR_WEIGHTS,
    .samples = tn__linear_samples,
    .work = tn__linear_work,
};

tn_tensor *tn_linear_gelu(tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return tn_apply3(&tn__op_linear_gelu, NULL, x, weight, bias);
}
