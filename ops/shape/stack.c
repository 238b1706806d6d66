/* y = the inputs side by side along a new dimension
 *
 *     inputs: the same dtype and shape, any       y: their shape with their number at dim
 *     dx_i = dy at position i of dim
 */
#include "ops/shape/shape.h"

static bool stack_shape(tn_op_call *c) {
    if (c->inputs < 1) { return tn_op_fail(c, TN_ESHAPE, "no tensors are given"); }
    const tn_tensor *first = c->in[0];
    int wanted = ((const tn__dim_args *)c->args)->dim, n = first->dims.ndim + 1,
        dim = wanted < 0 ? wanted + n : wanted;
    if (n > TN_MAX_DIMS || dim < 0 || dim >= n) {
        return tn_op_fail(c, n > TN_MAX_DIMS ? TN_ESHAPE : TN_EINDEX,
                          "a dimension at %d of tensors %s (at most %d are possible)", wanted,
                          tn_shape_text(first), TN_MAX_DIMS);
    }
    for (int i = 1; i < c->inputs; i++) {
        const tn_tensor *t = c->in[i];
        if (!tn__joins(c, i)) { return false; }
        if (!tn_dims_equal(t->dims, first->dims)) {
            return tn_op_fail(c, TN_ESHAPE,
                              "tensor %d is %s but tensor 0 is %s (they must be equal)", i,
                              tn_shape_text(t), tn_shape_text(first));
        }
    }
    tn_dims dims = {.ndim = n};
    for (int i = 0; i < n; i++) {
        dims.size[i] = i == dim ? c->inputs : first->dims.size[i < dim ? i : i - 1];
    }
    return tn_op_out(c, dims, first->dtype);
}

/* The position of the new dimension in y. */
static int new_dim(const void *args, tn_dims x) {
    x.ndim++;
    return tn__dim_from_start(((const tn__dim_args *)args)->dim, x.ndim);
}

/* Copies each x with the new dimension, of size 1. */
static tn_status stack_forward(const tn_op_call *c) {
    int dim = new_dim(c->args, c->in[0]->dims);
    for (int i = 0; i < c->inputs; i++) {
        tn_desc part = tn__desc_slice(c->y[0], dim, i, 1, 1), x = part, from = tn_desc_of(c->in[i]);
        x.data = from.data;
        for (int j = 0; j < x.ndim; j++) {
            x.stride[j] = j == dim ? 1 : from.stride[j < dim ? j : j - 1];
        }
        tn_status status = c->kernels->copy(c->ctx, &part, &x);
        if (status != TN_OK) { return status; }
    }
    return TN_OK;
}

static void stack_backward(tn_op_grad *g) {
    int dim = new_dim(g->args, tn_op_input_dims(g, 0));
    for (int i = 0; i < g->inputs; i++) {
        if (g->wants[i]) { tn_op_give(g, i, tn_select(g->dout[0], dim, i)); }
    }
}

const tn_op tn__op_stack = {
    .name = "stack",
    .args_size = sizeof(tn__dim_args),
    .fields = {TN_FIELD(tn__dim_args, dim)},
    .shape = stack_shape,
    .forward = stack_forward,
    .backward = stack_backward,
    .samples = "[3] [3] dim=0; [3, 2] [3, 2] [3, 2] dim=1; [3, 2] [3, 2] dim=-1; [] [] [] dim=0; "
               "[0, 3] [0, 3] dim=0; [1] dim=0; [5, 67] [5, 67] dim=-2",
};

tn_tensor *tn_stack(tn_tensor *const *t, int n, int dim) {
    return tn_apply(&tn__op_stack, &(tn__dim_args){dim}, t, n);
}
