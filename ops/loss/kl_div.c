/* kl_div(x, t) = t (log t - x), where x is the logarithm of a distribution; exp(t) (t - x) if t is
 * one too
 *
 *     x and target: any shape, the same; f32 f64 bf16 f16
 *     y: 0-dimensional, or x's shape with TN_NONE
 *
 * A target of 0 adds 0.
 */
#include "ops/loss/loss.h"

typedef struct kl_div_args {
    tn_reduction how;
    bool log_target;
} kl_div_args;

static tn_tensor *kl_div_compose(tn_op_call *c) {
    const kl_div_args *args = c->args;
    tn_tensor *x = c->in[0], *target = c->in[1];
    if (args->log_target) {
        return tn__loss_reduced(tn_mul(tn_exp(target), tn_sub(target, x)), args->how);
    }
    tn_tensor *none = tn_le(target, tn__constant(target, 0.0));
    tn_tensor *log = tn_log(tn_masked_fill(target, none, 1.0));
    return tn__loss_reduced(tn_mul(target, tn_sub(log, x)), args->how);
}

TN_LOSS(kl_div, kl_div_args, tn__loss_shape,
        "{-3:-0.1, 0.05:1} * *; * * reduction='sum', log_target=True; * * reduction='none'",
        TN_FIELD(kl_div_args, log_target))

tn_tensor *tn_kl_div(tn_tensor *x, tn_tensor *target, tn_reduction how, bool log_target) {
    return tn_apply2(&tn__op_kl_div, &(kl_div_args){how, log_target}, x, target);
}
