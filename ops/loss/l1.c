/* l1(x, t) = |x - t|, its mean, its sum, or each
 *
 *     x and target: any shape, the same; f32 f64 bf16 f16
 *     y: 0-dimensional, or x's shape with TN_NONE
 */
#include "ops/loss/loss.h"

static tn_tensor *l1_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *x = c->in[0], *target = c->in[1];
    return tn__loss_reduced(tn_abs(tn_sub(x, target)), args->how);
}

TN_LOSS(l1, tn__loss_args, tn__loss_shape, "{-1:1} * *; * * reduction='sum'; * * reduction='none'")

tn_tensor *tn_l1(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_apply2(&tn__op_l1, &(tn__loss_args){.how = how}, x, target);
}
