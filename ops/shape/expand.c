/* y = x repeated to larger sizes: a view with stride 0
 *
 *     x: any dtype, a shape that broadcasts to args.dims       y: args.dims
 *     dx = dy, summed over what was repeated (by the engine, as for every broadcast)
 */
#include "ops/shape/shape.h"

static bool expand_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    tn_dims dims = ((const tn__dims_args *)c->args)->dims, all;
    if (dims.ndim < 0 || !tn_dims_broadcast(x->dims, dims, &all) || !tn_dims_equal(all, dims)) {
        return tn_op_fail(
            c, TN_ESHAPE,
            "x is %s and cannot become %s (only new dimensions and those of size 1 repeat)",
            tn_shape_text(x), tn__dims_text(dims));
    }
    int64_t stride[TN_MAX_DIMS] = {0};
    for (int i = 0, new = dims.ndim - x->dims.ndim; i < x->dims.ndim; i++) {
        stride[new + i] = x->dims.size[i] == dims.size[new + i] ? x->stride[i] : 0;
    }
    return tn_op_view(c, dims, stride, x->offset);
}

const tn_op tn__op_expand = {
    .name = "expand",
    .inputs = {"x"},
    .args_size = sizeof(tn__dims_args),
    .fields = {TN_FIELD_AS("size", tn__dims_args, dims)},
    .shape = expand_shape,
    .backward = tn__pass_backward,
    .samples = "[3, 1] size=[3, 4]; [4] size=[3, 4]; [] size=[2, 3]; [1, 3, 1] size=[2, 2, 3, 2]; "
               "[3, 4] size=[3, 4]; [1, 3] size=[0, 3]; [] size=[]; [67] size=[35, 67]",
};

tn_tensor *tn_expand(tn_tensor *t, tn_dims dims) {
    return tn_apply1(&tn__op_expand, &(tn__dims_args){dims}, t);
}
