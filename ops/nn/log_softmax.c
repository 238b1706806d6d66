/* log_softmax(x) = x - max x - log(sum exp(x - max x)), over one dimension
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy - exp(y) sum(dy)
 *
 * The logarithm of softmax without its underflow: softmax.c's kernels, in their logarithmic form.
 */
#include "ops/nn/softmax.h"

/* As in softmax: no gradient flows through the largest element. */
static tn_tensor *log_softmax_compose(tn_op_call *c) {
    const tn_softmax_args *args = c->args;
    if (tn_count(c->in[0]) == 0) { return tn_exp(c->in[0]); }
    tn_tensor *x = c->in[0];
    tn_dims dim = TN_DIMS(args->dim);
    tn_tensor *low = tn_sub(x, tn_max(tn_detach(x), dim, true));
    return tn_sub(low, tn_log(tn_sum(tn_exp(low), dim, true)));
}

static tn_status log_softmax_host(const tn_op_call *c) {
    return tn__softmax_host(c, true);
}
static tn_status log_softmax_host_back(const tn_op_back *b) {
    return tn__softmax_host_back(b, true);
}

static void log_softmax_backward(tn_op_grad *g) {
    const tn_softmax_args *args = g->args;
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_tensor *total = tn_sum(dy, TN_DIMS(args->dim), true);
    tn_op_give(g, 0, tn_sub(dy, tn_mul(tn_exp(y), total)));
}

const tn_op tn__op_log_softmax = {
    .name = "log_softmax",
    .inputs = {"x"},
    .args_size = sizeof(tn_softmax_args),
    .fields = {TN_FIELD(tn_softmax_args, dim)},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__softmax_shape,
    .kernel = TN_FUSED(log_softmax),
    .host = {log_softmax_host, log_softmax_host_back},
    .compose = log_softmax_compose,
    .backward = log_softmax_backward,
    .flags = TN_OP_WIDE,
    .samples = tn__softmax_samples,
};

tn_tensor *tn_log_softmax(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_log_softmax, &(tn_softmax_args){dim}, x);
}
