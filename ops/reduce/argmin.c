/* y = position along dim of the first smallest element; a NaN counts as smallest
 *
 *     x: any shape with elements at dim, all but bool
 *     y: x's shape without dim (or 1 there), i64; no gradient
 */
#include "ops/reduce/reduce.h"

/* argmax of the reversed order: of -x, or for integers, whose minimum has no negative, of x with
 * all bits inverted. */
static tn_status argmin_forward(const tn_op_call *c) {
    tn_tensor *x = c->in[0];
    if (tn_count(x) == 0) { return TN_OK; }
    tn_desc turned = tn__scratch(c->ctx, x->dims, x->dtype);
    if (!turned.data) { return TN_ENOMEM; }
    bool real = tn_dtype_is_float(x->dtype);
    tn_status status = c->kernels->unary(c->ctx, real ? TN_NEG : TN_RSUB_K, &turned, c->x[0],
                                         x->dtype == TN_U8 ? 255.0 : -1.0, 0.0);
    status = status == TN_OK ? tn__argmax_along(c, &turned) : status;
    tn__scratch_free(c->ctx, &turned);
    return status;
}

const tn_op tn__op_argmin = {
    .name = "argmin",
    .inputs = {"x"},
    .args_size = sizeof(tn__argmax_args),
    .fields = {TN_FIELD(tn__argmax_args, dim), TN_FIELD(tn__argmax_args, keepdim)},
    .shape = tn__argmax_shape,
    .forward = argmin_forward,
    .samples = tn__argmax_samples,
};

tn_tensor *tn_argmin(tn_tensor *x, int dim, bool keepdim) {
    return tn_apply1(&tn__op_argmin, &(tn__argmax_args){dim, keepdim}, x);
}
