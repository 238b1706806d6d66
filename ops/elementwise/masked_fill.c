/* y = mask ? value : x
 *
 *     x: any shape and dtype; mask: bool, broadcasts to x       y: like x
 *     dx = 0 where mask, else dy
 */
#include "ops/dims.h"

static bool masked_fill_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0], *mask = c->in[1];
    double value = ((const tn__scalar_args *)c->args)->k;
    tn_dims dims;
    if (mask->dtype != TN_BOOL) {
        return tn_op_fail(c, TN_EDTYPE, "mask is %s (bool is needed)", tn_dtype_name(mask->dtype));
    }
    if (!tn_dims_broadcast(x->dims, mask->dims, &dims) || !tn_dims_equal(dims, x->dims)) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s but mask is %s (it must broadcast to x)",
                          tn_shape_text(x), tn_shape_text(mask));
    }
    if (!tn__fits(value, x->dtype)) {
        return tn_op_fail(c, TN_EVALUE, "%g is not a value of x's dtype %s", value,
                          tn_dtype_name(x->dtype));
    }
    return tn_op_out_like(c, 0);
}

/* The value goes into scratch memory, and `where` reads it with stride 0. */
static tn_status masked_fill_forward(const tn_op_call *c) {
    TN__SCRATCH_POOL(scratch, c);
    tn_desc value = tn__scratch(&scratch, TN_DIMS(), c->x[0]->dtype);
    if (!value.data) { return TN_ENOMEM; }
    tn_desc a = tn_desc_expand(&value, c->y[0]), mask = tn_desc_expand(c->x[1], c->y[0]);
    tn_status status = c->kernels->fill(c->ctx, &value, ((const tn__scalar_args *)c->args)->k);
    return status == TN_OK ? c->kernels->where(c->ctx, c->y[0], &mask, &a, c->x[0]) : status;
}

static void masked_fill_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_masked_fill(g->dout[0], tn_op_saved_input(g, 1), 0.0));
}

const tn_op tn__op_masked_fill = {
    .name = "masked_fill",
    .inputs = {"x", "mask"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD_AS("value", tn__scalar_args, k)},
    .saves = TN_SAVES_INPUT(1),
    .shape = masked_fill_shape,
    .forward = masked_fill_forward,
    .backward = masked_fill_backward,
    .samples = "{-3:3, bool} [3, 4] [3, 4] value=-1.5; [3, 4] [4] value=-1.5; "
               "[3, 4] [3, 1] value=-1.5; [5] [] value=-1.5; [] [] value=-1.5; "
               "[2, 0] [2, 1] value=-1.5; [1] [1] value=-1.5; [5, 67] [67] value=-1.5",
};

tn_tensor *tn_masked_fill(tn_tensor *x, tn_tensor *mask, double value) {
    return tn_apply2(&tn__op_masked_fill, &(tn__scalar_args){value}, x, mask);
}
