/* nll(x, label) = -weight[label] x[label] per row, where x are log-probabilities; then the mean
 * (over the sum of those weights) or the sum
 *
 *     x: (…, C), f32 f64 bf16 f16; labels: (…), i64 or i32; weight: absent, or (C)
 *     y: 0-dimensional, or (…) with TN_NONE
 *
 * Rows labelled ignore_index have loss 0, gradient 0 and no weight.
 */
#include "ops/loss/loss.h"

#include "ops/dims.h"

static bool nll_shape(tn_op_call *c) {
    return tn__loss_labels(c, ((const tn_nll_options *)c->args)->reduction, tn_dtype_of(c->in[0]));
}

static tn_tensor *nll_compose(tn_op_call *c) {
    const tn_nll_options *o = c->args;
    tn_tensor *x = c->in[0], *label = c->in[1], *weight = tn__optional(c, 2);
    int last = tn_ndim(x) - 1;
    tn_tensor *counts = tn_ne(label, tn__constant(label, (double)o->ignore_index));
    /* any class will do where no label counts */
    tn_tensor *safe = tn_where(counts, label, tn__constant(label, 0.0));
    tn_tensor *each = tn_neg(tn_squeeze(tn_gather(x, last, tn_unsqueeze(safe, last)), last));
    tn_tensor *share = tn_cast(counts, tn_dtype_of(x));
    if (weight) { share = tn_mul(share, tn__loss_weights(weight, safe, x)); }
    /* ignored rows may be NaN */
    each = tn_mul(tn_where(counts, each, tn__constant(each, 0.0)), share);
    if (o->reduction != TN_MEAN) { return tn__loss_reduced(each, o->reduction); }
    return tn_div(tn_sum_all(each), tn_sum_all(share));
}

const tn_op tn__op_nll = {
    .name = "nll",
    .inputs = {"log_probabilities", "labels", "weight"},
    .args_size = sizeof(tn_nll_options),
    .fields = {TN__REDUCTION(tn_nll_options, reduction), TN_FIELD(tn_nll_options, ignore_index)},
    .optional = 1u << 2,
    .shape = nll_shape,
    .compose = nll_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-3:-0.1, 0.5:2} [5, 4] [5]<4 - "
               "reduction='mean'; [5, 4] [5]<4 [4] reduction='mean'; "
               "[5, 4] [5]<4 - reduction='sum', ignore_index=1; "
               "[5, 4] [5]<4 [4] reduction='sum', ignore_index=1; "
               "[5, 4] [5]<4 - reduction='none', ignore_index=2; "
               "[5, 4] [5]<4 [4] reduction='none', ignore_index=2; "
               "[2, 3, 4] [2, 3]<4 - reduction='mean'; [2, 3, 4] [2, 3]<4 [4] reduction='mean'; "
               "[2, 3, 4] [2, 3]<4 - reduction='sum', ignore_index=1; "
               "[2, 3, 4] [2, 3]<4 [4] reduction='sum', ignore_index=1; "
               "[2, 3, 4] [2, 3]<4 - reduction='none', ignore_index=2; "
               "[2, 3, 4] [2, 3]<4 [4] reduction='none', ignore_index=2; "
               "[4] []<4 - reduction='mean'; [4] []<4 [4] reduction='mean'; "
               "[4] []<4 - reduction='sum', ignore_index=1; "
               "[4] []<4 [4] reduction='sum', ignore_index=1; "
               "[4] []<4 - reduction='none', ignore_index=2; "
               "[4] []<4 [4] reduction='none', ignore_index=2",
    .sample_args = &(const tn_nll_options){.ignore_index = -100},
};

tn_nll_options tn_nll_defaults(void) {
    return (tn_nll_options){.reduction = TN_MEAN, .ignore_index = -100, .from_defaults = true};
}

tn_tensor *tn_nll_with(tn_tensor *x, tn_tensor *labels, tn_nll_options options) {
    if (!tn__options_made(options.from_defaults, "nll", "tn_nll")) { return tn_inert(); }
    tn_tensor *weight = options.weight;
    options.weight = NULL; /* an input, which args do not hold */
    return tn_apply3(&tn__op_nll, &options, x, labels, weight);
}

tn_tensor *tn_nll(tn_tensor *x, tn_tensor *labels, tn_reduction how) {
    tn_nll_options options = tn_nll_defaults();
    options.reduction = how;
    return tn_nll_with(x, labels, options);
}
