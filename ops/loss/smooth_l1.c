/* smooth_l1(x, t) = d^2 / (2 beta) where d = |x - t| < beta, else d - beta / 2 (Girshick 2015,
 * arXiv:1504.08083); l1 for beta 0
 *
 *     x and target: any shape, the same; f32 f64 bf16 f16
 *     y: 0-dimensional, or x's shape with TN_NONE
 */
#include "ops/loss/loss.h"

static bool smooth_l1_shape(tn_op_call *c) {
    double beta = ((const tn__loss_args *)c->args)->k;
    if (!(beta >= 0.0)) {
        return tn_op_fail(c, TN_EVALUE, "beta is %g (it must be at least 0)", beta);
    }
    return tn__loss_shape(c);
}

static tn_tensor *smooth_l1_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *x = c->in[0], *target = c->in[1];
    tn_tensor *diff = tn_sub(x, target), *d = tn_abs(diff);
    if (args->k > 0.0) {
        tn_tensor *near = tn_mul_scalar(tn_square(diff), 0.5 / args->k);
        d = tn_where(tn_lt(d, tn__constant(d, args->k)), near, tn_sub_scalar(d, args->k / 2.0));
    }
    return tn__loss_reduced(d, args->how);
}

/* Where x is target the slope for beta 0 is 0, as in PyTorch 2; in 1.13 it was -1. */
TN_LOSS(smooth_l1, tn__loss_args, smooth_l1_shape,
        "{-1:1} * * beta=1.0; * * reduction='sum', beta=0.3; "
        "{0.1:1, -1:0} * * reduction='none', beta=0.0; {-1:0, 0.1:1} [3, 4] [3, 4] beta=0.0",
        TN_FIELD_AS("beta", tn__loss_args, k))

tn_tensor *tn_smooth_l1(tn_tensor *x, tn_tensor *target, tn_reduction how, double beta) {
    return tn_apply2(&tn__op_smooth_l1, &(tn__loss_args){how, beta}, x, target);
}
