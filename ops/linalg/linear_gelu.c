/* linear_gelu(x, w, b) = gelu(x w^T + b), the tanh form (ops/elementwise/gelu_tanh.c)
 *
 *     x: (…, in), w: (out, in), b: (out) or absent; f32 f64 bf16 f16       y: (…, out)
 *     With p = x w^T + b, which is kept, and dp = dy gelu'(p): the gradients of linear from dp.
 *
 * The first half of a transformer's mlp. A kernel of its own applies gelu to the product before it
 * leaves the chip; without one, linear's kernel and gelu's run one after the other, and without a
 * gradient to come in the same memory.
 */
#include "ops/linalg/linear.h"

static bool linear_gelu_shape(tn_op_call *c) {
    return tn__linear_shape(c) &&
           (!c->record || tn_op_out(c, tn_shape(c->out[0]), tn_dtype_of(c->in[0])));
}

static tn_status run_kernels(tn_op_call *c, const tn_desc *x) {
    tn_desc y = tn__rows_of(&c->y[0], 1), pre = y;
    if (c->record) {
        pre = tn__rows_of(&c->y[1], 1);
    }
    const tn_desc *w = &c->x[1], *b = tn__optional_desc(c, 2);
    if (c->kernels->linear_gelu) {
        return c->kernels->linear_gelu(c->ctx, &y, c->record ? &pre : NULL, x, w, b);
    }
    tn_status status = c->kernels->linear(c->ctx, &pre, x, w, b);
    return status == TN_OK ? c->kernels->unary(c->ctx, TN_GELU_TANH, &y, &pre, 0, 0) : status;
}

static tn_status linear_gelu_forward(tn_op_call *c) {
    tn__kernels k = tn__kernels_of(c);
    tn__rows x;
    tn_status status = tn__rows_open(k, &c->x[0], 1, &x);
    if (status == TN_OK) {
        status = run_kernels(c, &x.d);
    }
    tn__rows_close(k, &x);
    return status;
}

static void linear_gelu_backward(tn_op_grad *g) {
    tn_tensor *pre = tn_op_saved_output(g, 1);
    if (!tn_is_inert(pre)) {
        tn__linear_gradients(g, tn__grad_kernel(g, TN_GELU_TANH_GRAD, pre, g->dout[0]));
    }
}

static tn_tensor *linear_gelu_compose(const tn_op_call *c) {
    return tn_gelu_tanh(tn_linear_op(c->in[0], c->in[1], tn__optional(c, 2)));
}

const tn_op tn__op_linear_gelu = {
    .name = "linear_gelu",
    .inputs = {"x", "weight", "bias"},
    .optional = 1u << 2,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1),
    .shape = linear_gelu_shape,
    .forward = linear_gelu_forward,
    .backward = linear_gelu_backward,
    .compose = linear_gelu_compose,
    .kernel = TN_KERNEL(linear),
    .samples = tn__linear_samples,
};

tn_tensor *tn_linear_gelu(tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return tn_apply3(&tn__op_linear_gelu, NULL, x, weight, bias);
}
