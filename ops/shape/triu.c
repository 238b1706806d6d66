/* y = x on and above a diagonal of its last two dimensions, 0 below it
 *
 *     x: (…, m, n), any dtype; diagonal 0 begins at the first element, 1 one to its right
 *     y: like x
 *     dx = triu(dy)
 */
#include "ops/shape/shape.h"

static tn_tensor *triu_compose(tn_op_call *c) {
    const tn__triangle_args *args = c->args;
    tn_tensor *x = c->in[0];
    tn_tensor *below =
        tn__by_diagonal(tn_device_of(x), tn_size(x, -2), tn_size(x, -1), args->diagonal, tn_lt);
    return tn_masked_fill(x, below, 0.0);
}

const tn_op tn__op_triu = {
    .name = "triu",
    .inputs = {"x"},
    .args_size = sizeof(tn__triangle_args),
    .fields = {TN_FIELD(tn__triangle_args, diagonal)},
    .shape = tn__triangle_shape,
    .compose = triu_compose,
    .samples = tn__triangle_samples,
};

tn_tensor *tn_triu(tn_tensor *x, int64_t diagonal) {
    return tn_apply1(&tn__op_triu, &(tn__triangle_args){diagonal}, x);
}
