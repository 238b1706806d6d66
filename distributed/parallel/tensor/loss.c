/* Cross-entropy of logits whose columns are split over ranks.
 *
 * The kernel of cross_entropy runs on this rank's columns. For each row it gives the largest logit,
 * the logarithm of the sum relative to it, and, on the rank that has the label's column, the loss,
 * from which the label's logit follows. These three numbers per row are gathered, in the order of
 * the ranks, so that all join them to the same bits. Backward is the kernel again, with the joined
 * numbers.
 *
 *     top = max over ranks of top_r        sum = sum over ranks of exp(top_r - top + log_sum_r)
 *     loss = log(sum) - (x[label] - top)
 */
#include "distributed/parallel/tensor/tensor.h"

#include "ops/host.h"
#include "ops/loss/cross_entropy.h"

#include <math.h>

typedef struct loss_args {
    tn_cross_entropy_options options; /* first, for tn__cross_entropy_dx_out */
    tn_group *group;
    int64_t classes;
} loss_args;

static tn__slice columns_here(const loss_args *a) {
    return tn__tp_slice(a->group, tn_group_rank(a->group), a->classes);
}

static bool loss_shape(tn_op_call *c) {
    const loss_args *a = c->args;
    tn_dims x = tn_shape(c->in[0]), label = tn_shape(c->in[1]);
    if (!tn_op_float(c, 0) || !tn_op_index(c, 1)) { return false; }
    if (tn_group_rank(a->group) < 0) {
        return tn_op_fail(c, TN_ESTATE, "this rank is not a member of group %s",
                          tn_group_name(a->group));
    }
    int64_t columns = columns_here(a).count;
    if (x.ndim == 0 || !tn_dims_equal(tn__dims_leading(x), label) ||
        x.size[x.ndim - 1] != columns) {
        return tn_op_fail(c, TN_ESHAPE,
                          "logits are %s but labels are %s and classes %lld (labels need the "
                          "logits' dimensions but the last, which has this rank's columns, %lld)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]), (long long)a->classes,
                          (long long)columns);
    }
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[0]));
    bool made = true; /* loss, top, log_sum */
    for (int i = 0; i < 3 && made; i++) {
        made = tn_op_out(c, label, wide);
    }
    return made;
}

/* ---- Joining --------------------------------------------------------------------------------- */

/* Replaces this rank's numbers in the outputs by those of all columns. */
static tn_status join_rows(const tn_op_call *c) {
    TN_SCOPE;
    TN_NO_GRAD;
    const loss_args *a = c->args;
    tn_tensor *loss = c->out[0], *top = c->out[1], *log_sum = c->out[2], *label = c->in[1];
    tn_tensor *column = tn_add_scalar(label, -(double)columns_here(a).first);
    double last = (double)(tn_size(c->in[0], -1) - 1);
    tn_tensor *away = tn_ne(tn_clamp(column, 0.0, last), column);
    tn_tensor *logit = tn_masked_fill(tn_add(tn_sub(log_sum, loss), top), away, 0.0);
    tn_tensor *all = tn_dist_all_gather(a->group, TN_STACK(0, top, log_sum, logit)); /* (N, 3, …) */
    if (tn_is_inert(all) || tn__pending()) { return tn_error(); }
    tn_tensor *tops = tn_select(all, 1, 0), *sums = tn_select(all, 1, 1);
    tn_tensor *most = tn_max(tops, TN_DIMS(0), false);
    tn_tensor *share = tn_exp(tn_add(tn_sub(tops, most), sums));
    /* for a rank whose logits are all -inf */
    share = tn_masked_fill(share, tn_eq_scalar(tops, -INFINITY), 0.0);
    tn_tensor *total = tn_log(tn_sum(share, TN_DIMS(0), false));
    tn_tensor *picked = tn_sum(tn_select(all, 1, 2), TN_DIMS(0), false);
    tn_tensor *ignored = tn_eq_scalar(label, (double)a->options.ignore_index);
    tn_copy_(loss, tn_masked_fill(tn_sub(total, tn_sub(picked, most)), ignored, 0.0));
    tn_copy_(top, most);
    tn_copy_(log_sum, total);
    return tn_error();
}

/* ---- The kernel, both ways ------------------------------------------------------------------- */

static tn_cross_entropy_args kernel_args(const loss_args *a) {
    return (tn_cross_entropy_args){.ignore_index = a->options.ignore_index,
                                   .whole = a->classes,
                                   .first = columns_here(a).first};
}

static tn_status loss_forward(const tn_op_call *c) {
    tn_cross_entropy_args args = kernel_args(c->args);
    tn_status status = tn__cross_entropy_rows(c, &args, c->y[0]);
    return status == TN_OK ? join_rows(c) : status;
}

static tn_status loss_backward(const tn_op_back *b) {
    tn_cross_entropy_args args = kernel_args(b->args);
    tn_op_back rows = *b;
    rows.args = &args;
    return tn_op_run_back(&tn__op_cross_entropy, &rows);
}

static const tn_op loss_op = {
    .name = "dist_cross_entropy",
    .inputs = {"logits", "labels"},
    .args_size = sizeof(loss_args),
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1) | TN_SAVES_OUTPUT(2),
    .shape = loss_shape,
    .forward = loss_forward,
    .backward_kernel = loss_backward,
    .x_rows = {TN_ROWS(1), TN_ROWS(0)},
    .y_rows = {TN_ROWS(0), TN_ROWS(0), TN_ROWS(0)},
    .dx_out = tn__cross_entropy_dx_out,
};

tn_tensor *tn_dist_cross_entropy(tn_group *tp, tn_tensor *logits, tn_tensor *labels,
                                 int64_t classes, tn_cross_entropy_options options) {
    static const char operation[] = "dist_cross_entropy";
    if (!tn__options_made(options.from_defaults, operation, "tn_cross_entropy")) {
        return tn_inert();
    }
    if (options.weight || options.label_smoothing != 0.0) {
        tn__raise(TN_EUNSUPPORTED, operation, "of cut logits there is no %s",
                  options.weight ? "weight" : "label_smoothing");
        return tn_inert();
    }
    loss_args args = {options, tp, classes};
    tn_tensor *rows = tn_apply2(&loss_op, &args, logits, labels);
    if (tn_is_inert(rows)) { tn_group_abort(tp, tn_error_message()); }
    if (options.reduction == TN_NONE || tn_is_inert(rows)) { return rows; }
    tn_tensor *sum = tn_sum_all(rows);
    if (options.reduction == TN_SUM) { return sum; }
    tn_tensor *counts = tn_ne_scalar(labels, (double)options.ignore_index);
    return tn_div(sum, tn_sum_all(tn_cast(counts, tn_dtype_of(sum))));
}
