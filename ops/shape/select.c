/* y = position `index` of one dimension of x, which is removed: a view
 *
 *     x: any shape and dtype       y: x's shape without dim
 *     dx = zeros with dy at that position
 */
#include "ops/shape/shape.h"

typedef struct select_args {
    int dim;
    int64_t index; /* negative counts from the end */
} select_args;

static bool select_shape(tn_op_call *c) {
    const select_args *args = c->args;
    const tn_tensor *x = c->in[0];
    int dim = tn__dim(x, args->dim, c->op->name);
    if (dim < 0) { return false; }
    int64_t size = x->dims.size[dim], index = args->index < 0 ? args->index + size : args->index;
    if (index < 0 || index >= size) {
        return tn_op_fail(c, TN_EINDEX,
                          "x is %s and has no position %lld in dimension %d (size %lld)",
                          tn_shape_text(x), (long long)args->index, dim, (long long)size);
    }
    tn_dims dims = {.ndim = x->dims.ndim - 1};
    int64_t stride[TN_MAX_DIMS];
    for (int i = 0; i < dims.ndim; i++) {
        dims.size[i] = x->dims.size[i < dim ? i : i + 1];
        stride[i] = x->stride[i < dim ? i : i + 1];
    }
    return tn_op_view(c, dims, stride, x->offset + index * x->stride[dim]);
}

static void select_backward(tn_op_grad *g) {
    const select_args *args = g->args;
    tn_dims x = tn_op_input_dims(g, 0);
    int dim = tn__dim_from_start(args->dim, x.ndim);
    int64_t index = args->index < 0 ? args->index + x.size[dim] : args->index;
    tn__give_slice(g, (tn__slice_args){dim, index, 1, 1}, tn_unsqueeze(g->dout[0], dim));
}

const tn_op tn__op_select = {
    .name = "select",
    .inputs = {"x"},
    .args_size = sizeof(select_args),
    .fields = {TN_FIELD(select_args, dim), TN_FIELD(select_args, index)},
    .shape = select_shape,
    .backward = select_backward,
    .samples = "[7] dim=0, index=2; [3, 4] dim=1, index=3; [2, 3, 4] dim=-2, index=-1; "
               "[2, 3, 4] dim=0, index=0; [3, 0] dim=0, index=1; [1] dim=0, index=0; "
               "[5, 67] dim=0, index=4",
};

tn_tensor *tn_select(tn_tensor *t, int dim, int64_t index) {
    return tn_apply1(&tn__op_select, &(select_args){dim, index}, t);
}
