/* y = the smallest of x over dims; NaN if there is one
 *
 *     x: any shape with elements along dims, all but bool
 *     y: x's shape without dims (or 1 there)
 *     dx = dy / n at the n elements that equal y, else 0
 */
#include "ops/reduce/reduce.h"

static tn_status min_forward(const tn_op_call *c) {
    return tn_count(c->in[0]) ? tn__reduce(c, TN_MIN) : TN_OK;
}

const tn_op tn__op_min = {
    .name = "min",
    .inputs = {"x"},
    .args_size = sizeof(tn__reduce_args),
    .fields = {TN_FIELD(tn__reduce_args, dims), TN_FIELD(tn__reduce_args, keepdim)},
    .saves = TN_SAVES_INPUT(0) | TN_SAVES_OUTPUT(0),
    .shape = tn__max_shape,
    .forward = min_forward,
    .backward = tn__max_backward,
    .flags = TN_OP_WIDE,
    .add_samples = tn__max_samples,
};

tn_tensor *tn_min(tn_tensor *x, tn_dims dims, bool keepdim) {
    tn__reduce_args args = {dims, keepdim};
    return tn_apply1(&tn__op_min, &args, x);
}
