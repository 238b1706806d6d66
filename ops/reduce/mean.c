/* y = sum of x over dims / n,  n the number of elements summed; NaN over no elements
 *
 *     x: any shape, f32 f64 bf16 f16       y: x's shape without dims (or 1 there)
 *     dx = dy / n, repeated over dims
 *
 * tn_mean also takes bools, as 0 and 1 in f32.
 */
#include "ops/reduce/reduce.h"

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

TN_REDUCTION(mean, tn__reduce_float, TN__REDUCE_SAMPLES("-3:3") TN__REDUCE_NOTHING,
             .forward = mean_forward, .backward = mean_backward)

tn_tensor *tn_mean(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_apply1(&tn__op_mean, &(tn__reduce_args){dims, keepdim},
                     tn__counted(x, TN_F32, "mean"));
}

tn_tensor *tn_mean_all(tn_tensor *x) {
    return tn_mean(x, TN_DIMS(), false);
}
