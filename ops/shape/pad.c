/* y = x with more elements, of one value, before and after, along some dimensions; or with fewer
 *
 *     x: any shape and dtype; pads: (before, after) for the last dimension, then for the one before
 *     it, …; negative numbers remove elements
 *     y: x's sizes plus the pads
 *     dx = dy with the opposite pads
 */
#include "ops/shape/pad.h"

bool tn__pad_shape(tn_op_call *c) {
    const tn__pad_args *args = c->args;
    const tn_tensor *x = c->in[0];
    tn_dims y = x->dims;
    if (args->pads.ndim < 0 || args->pads.ndim % 2 || args->pads.ndim > 2 * y.ndim ||
        args->pads.ndim > TN_MAX_DIMS) {
        return tn_op_fail(c, TN_EVALUE, "x is %s but %d pads are given (two for each dimension)",
                          tn_shape_text(x), args->pads.ndim);
    }
    for (int i = 0; i < args->pads.ndim / 2; i++) {
        int64_t before = args->pads.size[2 * i], after = args->pads.size[2 * i + 1];
        int64_t *size = &y.size[y.ndim - 1 - i], was = *size;
        bool fits = before >= -was && after >= -was && !__builtin_add_overflow(was, before, size) &&
                    !__builtin_add_overflow(*size, after, size);
        if (!fits || *size < 0) {
            return tn_op_fail(
                c, TN_EVALUE, "x is %s: dimension %d cannot have pads of %lld and %lld",
                tn_shape_text(x), y.ndim - 1 - i, (long long)before, (long long)after);
        }
    }
    return tn_op_out(c, y, x->dtype);
}

static bool pad_shape(tn_op_call *c) {
    double value = ((const tn__pad_args *)c->args)->value;
    if (!tn__fits(value, c->in[0]->dtype)) {
        return tn_op_fail(c, TN_EVALUE, "%g is not a value of x's dtype %s", value,
                          tn_dtype_name(c->in[0]->dtype));
    }
    return tn__pad_shape(c);
}

static inline int64_t positive_part(int64_t n) {
    return n > 0 ? n : 0;
}

static tn_status pad_forward(const tn_op_call *c) {
    const tn__pad_args *args = c->args;
    tn_desc x = *c->x[0], y = *c->y[0];
    for (int i = 0; i < args->pads.ndim / 2; i++) {
        int dim = x.ndim - 1 - i;
        int64_t before = args->pads.size[2 * i], after = args->pads.size[2 * i + 1];
        int64_t length = x.size[dim] - positive_part(-before) - positive_part(-after);
        length = positive_part(length);
        x = tn__desc_slice(&x, dim, positive_part(-before), length, 1);
        y = tn__desc_slice(&y, dim, positive_part(before), length, 1);
    }
    tn_status status = c->kernels->fill(c->ctx, c->y[0], args->value);
    return status == TN_OK ? c->kernels->copy(c->ctx, &y, &x) : status;
}

static void pad_backward(tn_op_grad *g) {
    tn__pad_args back = *(const tn__pad_args *)g->args;
    back.value = 0.0;
    for (int i = 0; i < back.pads.ndim; i++) {
        back.pads.size[i] = -back.pads.size[i];
    }
    tn_op_give(g, 0, tn_apply1(&tn__op_pad, &back, g->dout[0]));
}

const tn_op tn__op_pad = {
    .name = "pad",
    .inputs = {"x"},
    .args_size = sizeof(tn__pad_args),
    .fields = {TN_FIELD_AS("pad", tn__pad_args, pads), TN_FIELD(tn__pad_args, value)},
    .shape = pad_shape,
    .forward = pad_forward,
    .backward = pad_backward,
    .samples = "[4] pad=[1, 2], value=0.0; [3, 4] pad=[1, 0, 2, 1], value=-1.5; "
               "[2, 3, 4] pad=[0, 3], value=2.0; [3, 4] pad=[-1, 2, 1, -2], value=1.0; "
               "[3, 4] pad=[-2, -1], value=0.0; [0, 3] pad=[1, 1, 1, 1], value=0.5; "
               "[1] pad=[1, 1], value=0.0; [1, 2, 5, 67] pad=[1, 1, 1, 1], value=0.0",
};

tn_tensor *tn_pad(tn_tensor *x, tn_dims pads, tn_pad_mode mode, double value) {
    return tn_apply1(mode == TN_PAD_CONSTANT ? &tn__op_pad : &tn__op_pad_around,
                     &(tn__pad_args){pads, mode, value}, x);
}
