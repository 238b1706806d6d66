/* log_softmax(x) = x - max x - log(sum exp(x - max x)), over one dimension
 *
 *     x: any shape, f32 f64 bf16 f16       y: as x
 *     dx = dy - exp(y) sum(dy)
 *
 * The logarithm of softmax without its underflow. See softmax.c: the same kernels,
 * told to take the logarithm.
 */
#include "ops/nn/softmax.h"

/* As in softmax: no gradient flows through the largest element. */
static tn_tensor *log_softmax_compose(tn_op_call *c) {
    const tn__softmax_args *args = c->args;
    if (tn_count(c->in[0]) == 0) {
        return tn_exp(c->in[0]);
    }
    tn_tensor *x = c->in[0];
    tn_dims dim = TN_DIMS(args->dim);
    tn_tensor *low = tn_sub(x, tn_max(tn_detach(x), dim, true));
    return tn_sub(low, tn_log(tn_sum(tn_exp(low), dim, true)));
}

static tn_status log_softmax_forward(tn_op_call *c) {
    const tn__softmax_args *args = c->args;
    tn_desc x = tn__desc_last(&c->x[0], args->dim), y = tn__desc_last(&c->y[0], args->dim);
    return c->kernels->softmax(c->ctx, &y, &x, true);
}

static void log_softmax_backward(tn_op_grad *g) {
    const tn__softmax_args *args = g->args;
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_tensor *total = tn_sum(dy, TN_DIMS(args->dim), true);
    tn_op_give(g, 0, tn_sub(dy, tn_mul(tn_exp(y), total)));
}

static tn_status log_softmax_backward_kernel(const tn_op_back *b) {
    const tn__softmax_args *args = b->args;
    tn_desc dx = tn__desc_last(b->dx[0], args->dim), y = tn__desc_last(b->y[0], args->dim),
            dy = tn__desc_last(b->dy[0], args->dim);
    return b->kernels->softmax_backward(b->ctx, &dx, &y, &dy, true);
}

const tn_op tn__op_log_softmax = {
    .name = "log_softmax",
    .inputs = {"x"},
    .args_size = sizeof(tn__softmax_args),
    .fields = {TN_FIELD(tn__softmax_args, dim)},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__softmax_shape,
    .forward = log_softmax_forward,
    .needs = TN_KERNEL(softmax),
    .compose = log_softmax_compose,
    .backward = log_softmax_backward,
    .backward_kernel = log_softmax_backward_kernel,
    .backward_needs = TN_KERNEL(softmax_backward),
    .wide = true,
    .samples = tn__softmax_samples,
};

tn_tensor *tn_log_softmax(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_log_softmax, &(tn__softmax_args){dim}, x);
}
