/* y = the largest, or the smallest, of x over dims; NaN if there is one
 *
 *     x: any shape with elements along dims, all but bool
 *     y: x's shape without dims (or 1 there)
 *     dx = dy / n at the n elements that equal y, else 0
 */
#include "ops/reduce/reduce.h"

static bool extreme_shape(tn_op_call *c) {
    return tn__needs_number(c) && tn__reduce_nonempty(c) && tn__reduce_out(c, c->in[0]->dtype);
}

static void extreme_backward(tn_op_grad *g) {
    const tn__reduce_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0), *y = tn_op_saved_output(g, 0);
    tn_tensor *equal = tn_cast(tn_eq(x, tn__spread(g, y)), tn_dtype_of(x));
    tn_tensor *n = tn_sum(equal, args->dims, args->keepdim);
    tn_op_give(g, 0, tn_mul(equal, tn__spread(g, tn_div(g->dout[0], n))));
}

/* Samples are distinct values, and rows in which two elements share the gradient. */
#define TN_EXTREME(op_, kernel_)                                                                \
    static tn_status op_##_forward(const tn_op_call *c) {                                       \
        return tn_count(c->in[0]) ? tn__reduce(c, kernel_) : TN_OK;                             \
    }                                                                                           \
    TN_REDUCTION(op_, extreme_shape,                                                            \
                 TN__REDUCE_SAMPLES("-3:3") "{once} [4, 2]=(2, -3, 2, -3, 1, 1, 1, 1) dim=[1]", \
                 .saves = TN_SAVES_INPUT(0) | TN_SAVES_OUTPUT(0), .forward = op_##_forward,     \
                 .backward = extreme_backward, .flags = TN_OP_WIDE)                             \
    tn_tensor *tn_##op_(tn_tensor *x, tn_dims dims, bool keepdim) {                             \
        tn__reduce_args args = {dims, keepdim};                                                 \
        return tn_apply1(&tn__op_##op_, &args, x);                                              \
    }

TN_EXTREME(max, TN_MAX)
TN_EXTREME(min, TN_MIN)
