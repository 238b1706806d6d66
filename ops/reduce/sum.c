/* y = sum of x over dims; 0 over no elements
 *
 *     x: any shape, all but bool       y: x's shape without dims (or 1 there); integers sum to i64
 *     dx = dy, repeated over dims
 *
 * tn_sum also takes bools, as 0 and 1 in i64.
 */
#include "ops/reduce/reduce.h"

static bool sum_shape(tn_op_call *c) {
    tn_dtype dtype = c->in[0]->dtype;
    if (!tn__needs_number(c)) { return false; }
    return tn__reduce_out(c, tn_dtype_is_float(dtype) ? dtype : TN_I64);
}

static tn_status sum_forward(const tn_op_call *c) {
    return tn__reduce(c, TN_SUM);
}

static void sum_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn__spread(g, g->dout[0]));
}

TN_REDUCTION(sum, sum_shape, TN__REDUCE_SAMPLES("-3:3") TN__REDUCE_NOTHING, .forward = sum_forward,
             .backward = sum_backward)

tn_tensor *tn_sum(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_apply1(&tn__op_sum, &(tn__reduce_args){dims, keepdim}, tn__counted(x, TN_I64, "sum"));
}

tn_tensor *tn_sum_all(tn_tensor *x) {
    return tn_sum(x, TN_DIMS(), false);
}
