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

static void l1_samples(tn_op_samples *s) {
    static const tn__loss_args args[] = {{.how = TN_MEAN}, {.how = TN_SUM}, {.how = TN_NONE}};
    static const char *const text[] = {"reduction='mean'", "reduction='sum'", "reduction='none'"};
    static const double x[] = {-1.0, 1.0}, target[] = {-1.0, 1.0};
    tn__loss_samples(s, 2, args, text, 3, x, target);
}

const tn_op tn__op_l1 = {
    .name = "l1",
    .inputs = {"x", "target"},
    .args_size = sizeof(tn__loss_args),
    .shape = tn__loss_shape,
    .compose = l1_compose,
    .flags = TN_OP_WIDE,
    .add_samples = l1_samples,
};

tn_tensor *tn_l1(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_apply2(&tn__op_l1, &(tn__loss_args){.how = how}, x, target);
}
