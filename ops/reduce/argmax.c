/* y = position along dim of the first largest element, or smallest; a NaN counts as either
 *
 *     x: any shape with elements at dim, all but bool
 *     y: x's shape without dim (or 1 there), i64; no gradient
 */
#include "ops/reduce/reduce.h"

typedef struct argmax_args {
    int dim;
    bool keepdim;
} argmax_args;

static bool argmax_shape(tn_op_call *c) {
    const argmax_args *args = c->args;
    const tn_tensor *x = c->in[0];
    if (!tn__needs_number(c)) { return false; }
    int dim = tn__dim_of_any(x, args->dim, c->op->name);
    if (dim < 0) { return false; }
    if (x->dims.ndim == 0) { return tn_op_out(c, x->dims, TN_I64); }
    if (x->dims.size[dim] == 0) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s (there is nothing to choose from in dimension %d)",
                          tn_shape_text(x), dim);
    }
    tn_dims dims = tn__reduce_kept(x->dims, 1u << dim);
    if (!args->keepdim) {
        dims.ndim--;
        for (int i = dim; i < dims.ndim; i++) {
            dims.size[i] = dims.size[i + 1];
        }
    }
    return tn_op_out(c, dims, TN_I64);
}

/* x: input 0, or a tensor of its shape. */
static tn_status argmax_along(const tn_op_call *c, const tn_desc *x) {
    int dim = ((const argmax_args *)c->args)->dim;
    tn_dims dims = c->in[0]->dims;
    if (dims.ndim == 0) { return c->kernels->fill(c->ctx, c->y[0], 0.0); }
    dim = dim < 0 ? dim + dims.ndim : dim;
    tn_desc y = tn__reduce_desc(c, tn__reduce_kept(dims, 1u << dim));
    return c->kernels->argmax(c->ctx, &y, x, dim);
}

static tn_status argmax_forward(const tn_op_call *c) {
    return argmax_along(c, c->x[0]);
}

/* argmax of the reversed order: of -x, or for integers, whose minimum has no negative, of x with
 * all bits inverted. */
static tn_status argmin_forward(const tn_op_call *c) {
    tn_tensor *x = c->in[0];
    if (tn_count(x) == 0) { return TN_OK; }
    TN__SCRATCH_POOL(scratch, c);
    tn_desc turned = tn__scratch(&scratch, x->dims, x->dtype);
    if (!turned.data) { return TN_ENOMEM; }
    bool real = tn_dtype_is_float(x->dtype);
    tn_status status = c->kernels->unary(c->ctx, real ? TN_NEG : TN_RSUB_K, &turned, c->x[0],
                                         x->dtype == TN_U8 ? 255.0 : -1.0, 0.0);
    return status == TN_OK ? argmax_along(c, &turned) : status;
}

#define TN_ARGUMENT(op_)                                                                     \
    const tn_op tn__op_##op_ = {                                                             \
        .name = #op_,                                                                        \
        .inputs = {"x"},                                                                     \
        .args_size = sizeof(argmax_args),                                                    \
        .fields = {TN_FIELD(argmax_args, dim), TN_FIELD(argmax_args, keepdim)},              \
        .shape = argmax_shape,                                                               \
        .forward = op_##_forward,                                                            \
        .samples = "{distinct -3:3} [7] dim=0, keepdim=False; [3, 4] dim=1, keepdim=False; " \
                   "[3, 4] dim=0, keepdim=True; [2, 3, 4] dim=-2, keepdim=False; "           \
                   "[0, 3] dim=1, keepdim=False; [1] dim=0, keepdim=False; "                 \
                   "[] dim=-1, keepdim=True; [3, 1030] dim=1, keepdim=False; "               \
                   "[2, 3]=(1, 3, 3, 2, 2, 2) dim=1, keepdim=False",                         \
    };                                                                                       \
    tn_tensor *tn_##op_(tn_tensor *x, int dim, bool keepdim) {                               \
        return tn_apply1(&tn__op_##op_, &(argmax_args){dim, keepdim}, x);                    \
    }

TN_ARGUMENT(argmax)
TN_ARGUMENT(argmin)
