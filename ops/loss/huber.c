/* huber(x, t) = d^2 / 2 where d = |x - t| <= delta, else delta (d - delta / 2) (Huber 1964)
 *
 *     x and target: any shape, the same; f32 f64 bf16 f16
 *     y: 0-dimensional, or x's shape with TN_NONE
 */
#include "ops/loss/loss.h"

static bool huber_shape(tn_op_call *c) {
    double delta = ((const tn__loss_args *)c->args)->k;
    if (!(delta > 0.0)) {
        return tn_op_fail(c, TN_EVALUE, "delta is %g (it must be more than 0)", delta);
    }
    return tn__loss_shape(c);
}

static tn_tensor *huber_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *x = c->in[0], *target = c->in[1];
    tn_tensor *diff = tn_sub(x, target), *d = tn_abs(diff);
    tn_tensor *near = tn_mul_scalar(tn_square(diff), 0.5); /* not d², as d has a kink at 0 */
    tn_tensor *far = tn_mul_scalar(tn_sub_scalar(d, args->k / 2.0), args->k);
    return tn__loss_reduced(tn_where(tn_le(d, tn__constant(d, args->k)), near, far), args->how);
}

TN_LOSS(huber, tn__loss_args, huber_shape,
        "{-1:1} * * delta=1.0; * * reduction='sum', delta=0.3; * * reduction='none', delta=2.0",
        TN_FIELD_AS("delta", tn__loss_args, k))

tn_tensor *tn_huber(tn_tensor *x, tn_tensor *target, tn_reduction how, double delta) {
    return tn_apply2(&tn__op_huber, &(tn__loss_args){how, delta}, x, target);
}
