/* y = log(sum over dims of exp(x)), computed as m + log(sum exp(x - m)) with m the largest x
 *
 *     x: any shape, f32 f64 bf16 f16
 *     y: x's shape without dims (or 1 there); -inf over no elements, or over -inf only
 *     dx = dy · exp(x - m) / sum exp(x - m)
 *
 * dx is not computed from y: with a large m the log of the sum is rounded away.
 */
#include "ops/reduce/reduce.h"

#include <float.h>
#include <math.h>

/* An infinite m is replaced by the largest finite number (inf - inf would be NaN); exp and log then
 * restore the infinity. */
static double finite_max(tn_dtype wide) {
    return wide == TN_F64 ? DBL_MAX : FLT_MAX;
}

/* wide: x in f32 or f64, then exp(x - m); m and sum: one element per element of y. */
static tn_status logsumexp_steps(const tn_op_call *c, const tn_desc *wide, const tn_desc *m,
                                 const tn_desc *sum, const tn_desc *y) {
    const tn_backend *kernels = c->kernels;
    double max = finite_max(wide->dtype);
    tn_desc spread = tn_desc_expand(m, wide);
    tn_status status = kernels->copy(c->ctx, wide, c->x[0]);
    if (status == TN_OK) { status = kernels->reduce(c->ctx, TN_MAX, m, wide); }
    if (status == TN_OK) { status = kernels->unary(c->ctx, TN_CLAMP_K, m, m, -max, max); }
    if (status == TN_OK) { status = kernels->binary(c->ctx, TN_SUB, wide, wide, &spread); }
    if (status == TN_OK) { status = kernels->unary(c->ctx, TN_EXP, wide, wide, 0.0, 0.0); }
    if (status == TN_OK) { status = kernels->reduce(c->ctx, TN_SUM, sum, wide); }
    if (status == TN_OK) { status = kernels->unary(c->ctx, TN_LOG, sum, sum, 0.0, 0.0); }
    if (status == TN_OK) { status = kernels->binary(c->ctx, TN_ADD, sum, sum, m); }
    return status == TN_OK ? kernels->copy(c->ctx, y, sum) : status;
}

static tn_status logsumexp_forward(const tn_op_call *c) {
    const tn__reduce_args *args = c->args;
    tn_dims x = c->in[0]->dims, kept = tn__reduce_kept(x, tn__reduce_mask(args->dims, x.ndim));
    if (tn_count(c->in[0]) == 0) { return c->kernels->fill(c->ctx, c->y[0], -INFINITY); }
    tn_dtype dtype = tn__wide_dtype(c->x[0]->dtype);
    TN__SCRATCH_POOL(scratch, c);
    tn_desc y = tn__reduce_desc(c, kept), wide = tn__scratch(&scratch, x, dtype);
    tn_desc m = tn__scratch(&scratch, kept, dtype), sum = tn__scratch(&scratch, kept, dtype);
    return wide.data && m.data && sum.data ? logsumexp_steps(c, &wide, &m, &sum, &y) : TN_ENOMEM;
}

/* The softmax does not depend on m, so a second derivative need not go through it. */
static void logsumexp_backward(tn_op_grad *g) {
    const tn__reduce_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0);
    if (tn_count(x) == 0) {
        tn_op_give(g, 0, tn_zeros_like(x));
        return;
    }
    double max = finite_max(tn_dtype_of(x));
    tn_tensor *m = tn_clamp(tn_max(tn_detach(x), args->dims, args->keepdim), -max, max);
    tn_tensor *e = tn_exp(tn_sub(x, tn__spread(g, m)));
    tn_tensor *scale = tn_div(g->dout[0], tn_sum(e, args->dims, args->keepdim));
    tn_op_give(g, 0, tn_mul(e, tn__spread(g, scale)));
}

/* Rows that would overflow or underflow, or are dominated by one element. */
TN_REDUCTION(logsumexp, tn__reduce_float,
             TN__REDUCE_SAMPLES("-3:3") TN__REDUCE_NOTHING
             "[4, 3]=(1000, 999, 998.5, -1000, -1001, -999.5, 0, 60, -60, 2, 2, 2) dim=[-1], "
             "keepdim=True",
             .saves = TN_SAVES_INPUT(0), .forward = logsumexp_forward,
             .backward = logsumexp_backward, .flags = TN_OP_WIDE)

tn_tensor *tn_logsumexp(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_apply1(&tn__op_logsumexp, &(tn__reduce_args){dims, keepdim}, x);
}
