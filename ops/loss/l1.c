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

const tn_op tn__op_l1 = {
    .name = "l1",
    .inputs = {"x", "target"},
    .args_size = sizeof(tn__loss_args),
    .fields = {TN__REDUCTION(tn__loss_args, how)},
    .shape = tn__loss_shape,
    .compose = l1_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-1:1} * *; * * reduction='sum'; * * reduction='none'",
    .sample_args = &(const tn__loss_args){TN_MEAN, 0.0},
};

tn_tensor *tn_l1(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_apply2(&tn__op_l1, &(tn__loss_args){.how = how}, x, target);
}
