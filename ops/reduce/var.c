/* var: y = sum over dims of (x - m)² / (n - correction),  m the mean of the n elements; std: its
 * root
 *
 *     x: any shape, f32 f64 bf16 f16
 *     y: x's shape without dims (or 1 there); the divisor is never negative: for n <= correction
 *        inf, or 0 / 0 = NaN
 *     var: dx = dy · 2 (x - m) / (n - correction), with its sign, as in PyTorch
 *     std: dx = dy (x - m) / (y (n - correction)), and 0 where y is 0, as in PyTorch
 *
 * In two passes, since the difference of two large sums would lose a small variance's digits; and
 * relative to the first element, so that equal elements have variance 0. */
#include "ops/reduce/reduce.h"

#include <math.h>
#include <string.h>

typedef struct var_args {
    tn__reduce_args over;
    int correction;
} var_args;

/* The number of elements per result. */
static int64_t var_count(const var_args *args, tn_dims x) {
    return tn__reduce_count(x, tn__reduce_mask(args->over.dims, x.ndim));
}

/* wide: x - first in f32 or f64, then minus its mean; small: the first elements, the mean, then the
 * result before it is rounded to y's dtype. */
static tn_status var_steps(const tn_op_call *c, const tn_desc *wide, const tn_desc *small,
                           const tn_desc *y) {
    const tn_backend *kernels = c->kernels;
    const var_args *args = c->args;
    int64_t n = var_count(args, c->in[0]->dims) - args->correction;
    tn_desc spread = tn_desc_expand(small, wide), first = *c->x[0];
    memcpy(first.size, small->size, sizeof first.size);
    tn_status status = kernels->copy(c->ctx, small, &first);
    if (status == TN_OK) { status = kernels->copy(c->ctx, wide, c->x[0]); }
    if (status == TN_OK) { status = kernels->binary(c->ctx, TN_SUB, wide, wide, &spread); }
    if (status == TN_OK) { status = kernels->reduce(c->ctx, TN_MEAN, small, wide); }
    if (status == TN_OK) { status = kernels->binary(c->ctx, TN_SUB, wide, wide, &spread); }
    if (status == TN_OK) { status = kernels->reduce(c->ctx, TN_SUM_SQUARES, small, wide); }
    if (status == TN_OK) {
        status = kernels->unary(c->ctx, TN_MUL_K, small, small, 1.0 / (double)(n > 0 ? n : 0), 0.0);
    }
    return status == TN_OK ? kernels->copy(c->ctx, y, small) : status;
}

static tn_status var_forward(const tn_op_call *c) {
    const var_args *args = c->args;
    tn_dims x = c->in[0]->dims, kept = tn__reduce_kept(x, tn__reduce_mask(args->over.dims, x.ndim));
    if (tn_count(c->in[0]) == 0) { return c->kernels->fill(c->ctx, c->y[0], NAN); }
    tn_dtype dtype = tn__wide_dtype(c->x[0]->dtype);
    TN__SCRATCH_POOL(scratch, c);
    tn_desc y = tn__reduce_desc(c, kept), wide = tn__scratch(&scratch, x, dtype),
            small = tn__scratch(&scratch, kept, dtype);
    return wide.data && small.data ? var_steps(c, &wide, &small, &y) : TN_ENOMEM;
}

/* In f32 for bf16 and f16: a rounded mean's error may be as large as x - m. */
static void var_backward(tn_op_grad *g) {
    const var_args *args = g->args;
    tn_tensor *x = tn__from_first(tn_op_saved_input(g, 0), args->over.dims);
    tn_tensor *from_mean = tn_sub(x, tn_mean(x, args->over.dims, true));
    int64_t n = var_count(args, tn_op_input_dims(g, 0));
    double k = n ? 2.0 / (double)(n - args->correction) : 0.0; /* without elements dx is empty */
    tn_tensor *dx = tn_mul(tn__spread(g, tn_mul_scalar(g->dout[0], k)), from_mean);
    tn_op_give(g, 0, dx);
}

const tn_op tn__op_var = {
    .name = "var",
    .inputs = {"x"},
    .args_size = sizeof(var_args),
    .fields = {TN__REDUCE_FIELDS, TN_FIELD(var_args, correction)},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__reduce_float,
    .forward = var_forward,
    .backward = var_backward,
    .flags = TN_OP_WIDE,
    /* One is far from 0, where sum(x²) - sum(x)² / n would be noise in f32. */
    .samples = "[7] dim=[0], correction=1, keepdim=False; "
               "[3, 4] dim=[1], correction=0, keepdim=False; "
               "[3, 4] dim=[-2], correction=1, keepdim=True; "
               "[2, 3, 4] dim=[0, 2], correction=1, keepdim=False; "
               "[] dim=[0], correction=0, keepdim=False; "
               "[0, 3] dim=[1], correction=1, keepdim=False; "
               "[2, 300] dim=[1], correction=1, keepdim=False; "
               "[300, 2] dim=[0], correction=0, keepdim=False; "
               "{100:106} [2, 20] dim=[1], correction=1, keepdim=True; "
               "{-3:3} [] dim=[-1], correction=0, keepdim=True",
};

tn_tensor *tn_var(tn_tensor *x, tn_dims dims, int correction, bool keepdim) {
    var_args args = {{dims, keepdim}, correction};
    return tn_apply1(&tn__op_var, &args, x);
}

static tn_tensor *std_compose(tn_op_call *c) {
    const var_args *args = c->args;
    return tn__sqrt_or_zero(
        tn_var(c->in[0], args->over.dims, args->correction, args->over.keepdim));
}

const tn_op tn__op_std = {
    .name = "std",
    .inputs = {"x"},
    .args_size = sizeof(var_args),
    .fields = {TN__REDUCE_FIELDS, TN_FIELD(var_args, correction)},
    .shape = tn__reduce_float,
    .compose = std_compose,
    .flags = TN_OP_WIDE,
    /* The last has equal elements, so its deviation is 0. */
    .samples = "{distinct -3:3} [7] dim=[0], correction=1, keepdim=False; "
               "[3, 4] dim=[1], correction=0, keepdim=False; "
               "[3, 4] dim=[-2], correction=1, keepdim=True; "
               "[2, 3, 4] dim=[0, 2], correction=1, keepdim=False; "
               "[0, 3] dim=[1], correction=1, keepdim=False; "
               "[2, 300] dim=[1], correction=1, keepdim=False; "
               "{once} [2, 3]=(2, 2, 2, -1, -1, -1) dim=[1], correction=0, keepdim=False",
};

tn_tensor *tn_std(tn_tensor *x, tn_dims dims, int correction, bool keepdim) {
    var_args args = {{dims, keepdim}, correction};
    return tn_apply1(&tn__op_std, &args, x);
}
