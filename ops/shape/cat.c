/* y = the inputs concatenated along one dimension
 *
 *     inputs: the same dtype, any; shapes equal except at dim
 *     y: the sum of their sizes at dim
 *     dx_i = its part of dy
 */
#include "ops/shape/shape.h"

static bool cat_shape(tn_op_call *c) {
    int dim = c->inputs > 0 ? tn__op_dim(c, ((const tn__dim_args *)c->args)->dim) : -1;
    if (dim < 0) {
        return c->inputs > 0 ? false : tn_op_fail(c, TN_ESHAPE, "no tensors are given");
    }
    const tn_tensor *first = c->in[0];
    tn_dims dims = first->dims;
    for (int i = 1; i < c->inputs; i++) {
        const tn_tensor *t = c->in[i];
        tn_dims same = t->dims;
        if (!tn__joins(c, i)) { return false; }
        same.size[dim] = same.ndim == dims.ndim ? first->dims.size[dim] : 0;
        if (!tn_dims_equal(same, first->dims)) {
            return tn_op_fail(c, TN_ESHAPE,
                              "tensor %d is %s but tensor 0 is %s (only dimension %d may differ)",
                              i, tn_shape_text(t), tn_shape_text(first), dim);
        }
        dims.size[dim] += t->dims.size[dim];
    }
    return tn_op_out(c, dims, first->dtype);
}

static tn_status cat_forward(const tn_op_call *c) {
    int dim = tn__dim_from_start(((const tn__dim_args *)c->args)->dim, c->in[0]->dims.ndim);
    int64_t start = 0;
    for (int i = 0; i < c->inputs; i++) {
        tn_desc x = tn_desc_of(c->in[i]),
                part = tn__desc_slice(c->y[0], dim, start, x.size[dim], 1);
        tn_status status = c->kernels->copy(c->ctx, &part, &x);
        if (status != TN_OK) { return status; }
        start += x.size[dim];
    }
    return TN_OK;
}

static void cat_backward(tn_op_grad *g) {
    int dim = tn__dim_from_start(((const tn__dim_args *)g->args)->dim, tn_op_input_dims(g, 0).ndim);
    int64_t start = 0;
    for (int i = 0; i < g->inputs; i++) {
        int64_t length = tn_op_input_dims(g, i).size[dim];
        if (g->wants[i]) { tn_op_give(g, i, tn_narrow(g->dout[0], dim, start, length)); }
        start += length;
    }
}

const tn_op tn__op_cat = {
    .name = "cat",
    .args_size = sizeof(tn__dim_args),
    .fields = {TN_FIELD(tn__dim_args, dim)},
    .shape = cat_shape,
    .forward = cat_forward,
    .backward = cat_backward,
    .samples = "[3] [4] dim=0; [3, 2] [3, 1] [3, 4] dim=1; [2, 3, 2] [2, 1, 2] dim=-2; "
               "[0, 3] [2, 3] dim=0; [2, 3] dim=0; [2, 0] [1, 0] dim=0; [5, 67] [5, 34] dim=1",
};

tn_tensor *tn_cat(tn_tensor *const *t, int n, int dim) {
    return tn_apply(&tn__op_cat, &(tn__dim_args){dim}, t, n);
}
