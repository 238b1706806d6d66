/* bce_with_logits(x, t) = bce(sigmoid(x), t) = (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)), times
 * weight
 *
 *     x and target: any shape, the same; f32 f64 bf16 f16
 *     weight, pos_weight (p): absent, or broadcast to x; p weights the positive targets
 *     y: 0-dimensional, or x's shape with TN_NONE
 *
 * With softplus nothing overflows, and no probability is rounded to 0 or 1.
 */
#include "ops/loss/loss.h"

#include "ops/dims.h"

#include <math.h>

static tn_tensor *bce_with_logits_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *x = c->in[0], *t = c->in[1];
    tn_tensor *weight = tn__optional(c, 2), *positive = tn__optional(c, 3);
    tn_tensor *surprise = tn_softplus(tn_neg(x), 1.0, INFINITY);
    if (positive) {
        tn_tensor *share = tn_mul(tn_sub_scalar(positive, 1.0), t);
        surprise = tn_mul(surprise, tn_add_scalar(share, 1.0));
    }
    tn_tensor *each = tn_add(tn_mul(tn_rsub_scalar(t, 1.0), x), surprise);
    return tn__loss_reduced(weight ? tn_mul(each, weight) : each, args->how);
}

/* Samples have logits whose sigmoid is 0 or 1 in single precision; each weight, and both. */
const tn_op tn__op_bce_with_logits = {
    .name = "bce_with_logits",
    .inputs = {"x", "target", "weight", "pos_weight"},
    .args_size = sizeof(tn__loss_args),
    .fields = {TN__REDUCTION(tn__loss_args, how)},
    .optional = 1u << 2 | 1u << 3,
    .shape = tn__loss_shape,
    .compose = bce_with_logits_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-4:4, 0:1, 0.5:2, 0.5:3} * * - -; * * - - reduction='sum'; "
               "* * - - reduction='none'; [3, 4] [3, 4] [3, 1] -; "
               "[3, 4] [3, 4] - [4] reduction='sum'; [3, 4] [3, 4] [3, 1] [4] reduction='none'; "
               "{-60:60, 0:1} * * - - reduction='none'",
    .sample_args = &(const tn__loss_args){TN_MEAN, 0.0},
};

tn_bce_options tn_bce_defaults(void) {
    return (tn_bce_options){.reduction = TN_MEAN, .from_defaults = true};
}

tn_tensor *tn_bce_with_logits_with(tn_tensor *x, tn_tensor *target, tn_bce_options options) {
    if (!tn__options_made(options.from_defaults, "bce_with_logits", "tn_bce")) {
        return tn_inert();
    }
    tn_tensor *in[] = {x, target, options.weight, options.pos_weight};
    return tn_apply(&tn__op_bce_with_logits, &(tn__loss_args){.how = options.reduction}, in, 4);
}

tn_tensor *tn_bce_with_logits(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    tn_bce_options options = tn_bce_defaults();
    options.reduction = how;
    return tn_bce_with_logits_with(x, target, options);
}
