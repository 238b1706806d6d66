/* y = x with its dimensions in another order: a view
 *
 *     x: any shape and dtype       y: dimension i of y is dims[i] of x
 *     dx = dy, permuted back
 */
#include "ops/shape/shape.h"

static bool permute_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    tn_dims order = ((const tn__dims_args *)c->args)->dims, dims = {.ndim = x->dims.ndim};
    int64_t stride[TN_MAX_DIMS];
    unsigned seen = 0;
    bool ok = order.ndim == dims.ndim;
    for (int i = 0; i < dims.ndim && ok; i++) {
        int64_t from = order.size[i] < 0 ? order.size[i] + dims.ndim : order.size[i];
        ok = from >= 0 && from < dims.ndim && !(seen >> from & 1);
        if (ok) {
            seen |= 1u << from;
            dims.size[i] = x->dims.size[from];
            stride[i] = x->stride[from];
        }
    }
    if (!ok) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but the order is %s (each dimension must be named once)",
                          tn_shape_text(x), tn__dims_text(order));
    }
    return tn_op_view(c, dims, stride, x->offset);
}

static void permute_backward(tn_op_grad *g) {
    tn_dims order = ((const tn__dims_args *)g->args)->dims, back = {.ndim = order.ndim};
    for (int i = 0; i < order.ndim; i++) {
        back.size[order.size[i] < 0 ? order.size[i] + order.ndim : order.size[i]] = i;
    }
    tn_op_give(g, 0, tn_permute(g->dout[0], back));
}

const tn_op tn__op_permute = {
    .name = "permute",
    .inputs = {"x"},
    .args_size = sizeof(tn__dims_args),
    .fields = {TN_FIELD_AS("dims", tn__dims_args, dims)},
    .shape = permute_shape,
    .backward = permute_backward,
    .samples = "[3, 4] dims=[1, 0]; [2, 3, 4] dims=[2, 0, 1]; [2, 3, 4] dims=[0, -1, 1]; "
               "[2, 3, 1, 2] dims=[3, 1, 0, 2]; [] dims=[]; [0, 3] dims=[1, 0]; [1] dims=[0]; "
               "[35, 67] dims=[1, 0]",
};

tn_tensor *tn_permute(tn_tensor *t, tn_dims order) {
    return tn_apply1(&tn__op_permute, &(tn__dims_args){order}, t);
}

tn_tensor *tn_transpose(tn_tensor *t, int a, int b) {
    if (!tn__usable(t, "transpose")) { return tn_inert(); }
    int p = tn__dim(t, a, "transpose"), q = p < 0 ? -1 : tn__dim(t, b, "transpose");
    if (p < 0 || q < 0) { return tn_inert(); }
    tn_dims order = {.ndim = t->dims.ndim};
    for (int i = 0; i < order.ndim; i++) {
        order.size[i] = i == p ? q : i == q ? p : i;
    }
    return tn_permute(t, order);
}

tn_tensor *tn_t(tn_tensor *t) {
    if (!tn__usable(t, "t")) { return tn_inert(); }
    if (t->dims.ndim < 2) {
        return tn__refused(TN_ESHAPE, "t", "x is %s but must have 2 dimensions", tn_shape_text(t));
    }
    return tn_transpose(t, -2, -1);
}
