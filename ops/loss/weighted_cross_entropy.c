/* Cross-entropy whose classes have weights w:
 *
 *     (1 - s) w[label] (lse - x[label]) + s / C sum over c of w[c] (lse - x[c])       per row
 *
 * then the sum, or the mean, which divides by the sum of the rows' w[label], as in PyTorch.
 * Otherwise like cross_entropy.c, which has no weights and one kernel.
 */
#include "ops/dims.h"
#include "ops/loss/loss.h"

static bool weighted_cross_entropy_shape(tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    if (!(o->label_smoothing >= 0.0 && o->label_smoothing <= 1.0)) {
        return tn_op_fail(c, TN_EVALUE, "label_smoothing is %g (it must be in [0, 1])",
                          o->label_smoothing);
    }
    return tn__loss_labels(c, o->reduction, tn__wide_dtype(tn_dtype_of(c->in[0])));
}

/* Each row's mean over all classes, which smoothing mixes in. */
static tn_tensor *smooth_losses(tn_tensor *logp, tn_tensor *counts, tn_tensor *weight) {
    int last = tn_ndim(logp) - 1;
    tn_tensor *all = tn_neg(tn_mean(tn_mul(logp, weight), TN_DIMS(last), false));
    return tn_where(counts, all, tn__constant(all, 0.0));
}

static tn_tensor *weighted_cross_entropy_compose(tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    tn_tensor *x = c->in[0], *label = c->in[1], *weight = tn_cast(c->in[2], tn_dtype_of(x));
    tn_nll_options rows =
        TN_WITH(tn_nll, .reduction = TN_NONE, .ignore_index = o->ignore_index, .weight = weight);
    tn_tensor *counts = tn_ne(label, tn__constant(label, (double)o->ignore_index));
    /* ignored rows may be NaN */
    x = tn_where(tn_unsqueeze(counts, tn_ndim(x) - 1), x, tn__constant(x, 0.0));
    tn_tensor *logp = tn_log_softmax(x, tn_ndim(x) - 1), *loss = tn_nll_with(logp, label, rows);
    if (o->label_smoothing > 0.0) {
        loss = tn_add(tn_mul_scalar(loss, 1.0 - o->label_smoothing),
                      tn_mul_scalar(smooth_losses(logp, counts, weight), o->label_smoothing));
    }
    if (o->reduction != TN_MEAN) { return tn__loss_reduced(loss, o->reduction); }
    /* the loss with every log-probability -1 is each row's weight */
    tn_tensor *share = tn_nll_with(tn__filled(x, tn_shape(x), -1.0), label, rows);
    return tn_div(tn_sum_all(loss), tn_sum_all(share));
}

const tn_op tn__op_weighted_cross_entropy = {
    .name = "weighted_cross_entropy",
    .inputs = {"logits", "labels", "weight"},
    .args_size = sizeof(tn_cross_entropy_options),
    .fields = {TN__REDUCTION(tn_cross_entropy_options, reduction),
               TN_FIELD(tn_cross_entropy_options, ignore_index),
               TN_FIELD(tn_cross_entropy_options, label_smoothing)},
    .shape = weighted_cross_entropy_shape,
    .compose = weighted_cross_entropy_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-2:2, -2:2, 0.5:2} [3, 4, 5] [3, 4]<5 [5]; "
               "[3, 4, 5] [3, 4]<5 [5] reduction='sum', ignore_index=1; "
               "[3, 4, 5] [3, 4]<5 [5] ignore_index=2, label_smoothing=0.1; "
               "[3, 4, 5] [3, 4]<5 [5] reduction='none', ignore_index=0, label_smoothing=0.25",
    .sample_args = &(const tn_cross_entropy_options){.reduction = TN_MEAN, .ignore_index = -100},
};
