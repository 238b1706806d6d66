/* bce(x, t) = -(t log x + (1 - t) log(1 - x)), times weight; x is a probability
 *
 *     x and target: any shape, the same; f32 f64 bf16 f16
 *     weight: absent, or broadcasts to x
 *     y: 0-dimensional, or x's shape with TN_NONE
 *
 * Logarithms are at least -100, so that a certain and wrong x has a finite loss, as in PyTorch.
 * Elements outside [0, 1] are an error on the CPU. On a device, where the check would have to wait,
 * the loss of such an x is NaN. bce_with_logits is exact where x would round to 0 or 1.
 */
#include "ops/loss/loss.h"

#include "ops/dims.h"

/* log x, or log(1 - x), at least -100. The slope is at most 1e12, as in PyTorch: 1 / x would be
 * infinite for the smallest x, and that times a target of 0 is NaN. */
static tn_tensor *bounded_log(tn_tensor *x, bool of_rest) {
    tn_tensor *p = of_rest ? tn_rsub_scalar(x, 1.0) : x, *flat = tn_detach(p);
    tn_tensor *steep = tn_lt(tn_abs(flat), tn__constant(x, 1e-12));
    tn_tensor *inside = tn_masked_fill(x, steep, 0.5);
    tn_tensor *log = of_rest ? tn_log1p(tn_neg(inside)) : tn_log(inside);
    tn_tensor *low = tn_clamp(tn_log(flat), -100.0, 0.0);
    return tn_where(steep, tn_add(low, tn_mul_scalar(tn_sub(p, flat), 1e12)), log);
}

static tn_tensor *bce_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *x = c->in[0], *t = c->in[1], *weight = tn__optional(c, 2);
    tn_tensor *right = tn_mul(t, bounded_log(x, false));
    tn_tensor *wrong = tn_mul(tn_rsub_scalar(t, 1.0), bounded_log(x, true));
    tn_tensor *each = tn_neg(tn_add(right, wrong));
    return tn__loss_reduced(weight ? tn_mul(each, weight) : each, args->how);
}

const tn_op tn__op_bce = {
    .name = "bce",
    .inputs = {"x", "target", "weight"},
    .args_size = sizeof(tn__loss_args),
    .fields = {TN__REDUCTION(tn__loss_args, how)},
    .optional = 1u << 2,
    .shape = tn__loss_shape,
    .compose = bce_compose,
    .flags = TN_OP_WIDE,
    .samples = "{0.1:0.9, 0:1, 0.5:2} * * -; * * - reduction='sum'; * * - reduction='none'; "
               "[3, 4] [3, 4] [4] reduction='none'",
    .sample_args = &(const tn__loss_args){TN_MEAN, 0.0},
};

/* False after raising. The shape rule reports anything else wrong with t. */
static bool check_range(tn_tensor *t, const char *name, const char *advice) {
    return !tn__usable(t, "bce") || !tn_dtype_is_float(t->dtype) ||
           tn_device_of(t).kind != TN_CPU || tn__probabilities(t, name, advice, "bce");
}

tn_tensor *tn_bce(tn_tensor *x, tn_tensor *target, tn_tensor *weight, tn_reduction how) {
    if (!check_range(x, "x", "; logits go to tn_bce_with_logits") ||
        !check_range(target, "target", "")) {
        return tn_inert();
    }
    return tn_apply3(&tn__op_bce, &(tn__loss_args){.how = how}, x, target, weight);
}
