/* y = x summed down to a shape that broadcasts to x's: what undoes a broadcast
 *
 *     x: any shape, f32 f64 bf16 f16       y: args.dims
 *     dx = dy, repeated to x's shape
 */
#include "ops/reduce/reduce.h"

static bool sum_to_shape(tn_op_call *c) {
    tn_dims dims = ((const tn__dims_args *)c->args)->dims, all;
    const tn_tensor *x = c->in[0];
    if (!tn__needs_float(c)) { return false; }
    if (dims.ndim < 0 || !tn_dims_broadcast(x->dims, dims, &all) || !tn_dims_equal(all, x->dims)) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but the sum's shape is %s (it must broadcast to x)",
                          tn_shape_text(x), tn__dims_text(dims));
    }
    return tn_op_out(c, dims, x->dtype);
}

static tn_status sum_to_forward(const tn_op_call *c) {
    tn_dims dims = ((const tn__dims_args *)c->args)->dims, kept = c->in[0]->dims;
    int new = kept.ndim - dims.ndim;
    for (int i = 0; i < kept.ndim; i++) {
        kept.size[i] = i < new ? 1 : dims.size[i - new];
    }
    tn_desc y = tn__reduce_desc(c, kept);
    return c->kernels->reduce(c->ctx, TN_SUM, &y, c->x[0]);
}

static void sum_to_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_expand(g->dout[0], tn_op_input_dims(g, 0)));
}

const tn_op tn__op_sum_to = {
    .name = "sum_to",
    .inputs = {"x"},
    .args_size = sizeof(tn__dims_args),
    .fields = {TN_FIELD_AS("size", tn__dims_args, dims)},
    .shape = sum_to_shape,
    .forward = sum_to_forward,
    .backward = sum_to_backward,
    .samples = "[7] size=[]; [3, 4] size=[4]; [3, 4] size=[3, 1]; [2, 3, 4] size=[1, 4]; "
               "[3, 4] size=[3, 4]; [0, 3] size=[3]; [] size=[]; [300, 3] size=[3]",
};

tn_tensor *tn_sum_to(tn_tensor *x, tn_dims dims) {
    if (tn__usable(x, "sum_to") && tn_dims_equal(x->dims, dims)) { return x; }
    return tn_apply1(&tn__op_sum_to, &(tn__dims_args){dims}, x);
}
