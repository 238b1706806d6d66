/* y = sum of x over dims / n,  n the number of elements summed; NaN over no elements
 *
 *     x: any shape, f32 f64 bf16 f16       y: x's shape without dims (or 1 there)
 *     dx = dy / n, repeated over dims
 *
 * tn_mean also takes bools, as 0 and 1 in f32.
 */
#include "ops/reduce/reduce.h"

static bool mean_shape(tn_op_call *c) {
    return tn__needs_float(c) && tn__reduce_out(c, c->in[0]->dtype);
}

static tn_status mean_forward(const tn_op_call *c) {
    return tn__reduce(c, TN_MEAN);
}

static void mean_backward(tn_op_grad *g) {
    const tn__reduce_args *args = g->args;
    tn_dims x = tn_op_input_dims(g, 0);
    int64_t n = tn__reduce_count(x, tn__reduce_mask(args->dims, x.ndim));
    double k = n ? 1.0 / (double)n : 0.0; /* without elements dx is empty */
    tn_op_give(g, 0, tn__spread(g, tn_mul_scalar(g->dout[0], k)));
}

const tn_op tn__op_mean = {
    .name = "mean",
    .inputs = {"x"},
    .args_size = sizeof(tn__reduce_args),
    .fields = {TN__REDUCE_FIELDS},
    .shape = mean_shape,
    .forward = mean_forward,
    .backward = mean_backward,
    .samples = TN__REDUCE_SAMPLES("-3:3") TN__REDUCE_NOTHING,
};

tn_tensor *tn_mean(tn_tensor *x, tn_dims dims, bool keepdim) {
    tn__reduce_args args = {dims, keepdim};
    return tn_apply1(&tn__op_mean, &args, tn__counted(x, TN_F32, "mean"));
}

tn_tensor *tn_mean_all(tn_tensor *x) {
    return tn_mean(x, TN_DIMS(), false);
}
