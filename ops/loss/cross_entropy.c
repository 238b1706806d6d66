/* cross_entropy(x, label) = (1 - s) (lse - x[label]) + s (lse - mean x) a row, then mean or sum
 *
 *     x: (…, C) logits, f32 f64 bf16 f16; label: (…), i64 or i32
 *     lse = log sum exp x = top + log_sum, top = max x
 *     y: 0-dimensional, or (…) with TN_NONE; f64 for f64, else f32
 *     dx = (softmax(x) - (1 - s) onehot(label) - s / C) dloss
 *     dloss = dy, for the mean divided by the number of rows that count
 *
 * s is label_smoothing (Szegedy et al. 2016, arXiv:1512.00567). Rows labelled ignore_index have
 * loss 0 and gradient 0, and do not count in the mean; when all are ignored it is 0 / 0 = NaN, as
 * in PyTorch. Kept for backward: x, and top, log_sum and the count, which are small. softmax(x) is
 * made again from them, so no second (…, C) is kept. top and log_sum stay two numbers: their sum
 * would have an error of eps times the largest logit.
 */
#include "ops/rows.h"

/* ---- Shape rule ------------------------------------------------------------------------------ */

static bool cross_entropy_shape(tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    tn_dims x = tn_shape(c->in[0]), label = tn_shape(c->in[1]);
    if (!tn_op_float(c, 0) || !tn_op_index(c, 1)) {
        return false;
    }
    if (x.ndim == 0 || !tn_dims_equal(tn__dims_leading(x), label)) {
        return tn_op_fail(
            c, TN_ESHAPE,
            "logits are %s but labels are %s (labels need the logits' dimensions but the last)",
            tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    if (!(o->label_smoothing >= 0.0 && o->label_smoothing <= 1.0)) {
        return tn_op_fail(c, TN_EVALUE, "label_smoothing is %g (it is in [0, 1])",
                          o->label_smoothing);
    }
    if (o->reduction != TN_MEAN && o->reduction != TN_SUM && o->reduction != TN_NONE) {
        return tn_op_fail(c, TN_EVALUE, "reduction is %d (TN_MEAN, TN_SUM or TN_NONE)",
                          (int)o->reduction);
    }
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[0]));
    return tn_op_out(c, o->reduction == TN_NONE ? label : TN_DIMS(), wide) && /* loss */
           tn_op_out(c, label, wide) &&                                       /* top */
           tn_op_out(c, label, wide) &&                                       /* log_sum */
           (o->reduction != TN_MEAN || tn_op_out(c, TN_DIMS(), wide));        /* rows that count */
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* count = how many labels are not ignore_index. same: n bytes, ones: n elements of count's
 * dtype, key: one label; all scratch. */
static tn_status count_rows(tn_op_call *c, const tn_desc *label, const tn_desc *ones, void *same,
                            void *key) {
    const tn_cross_entropy_options *o = c->args;
    int64_t n = label->size[0];
    tn_desc ignored = tn__desc_vector(key, label->dtype, 1),
            counts = tn__desc_vector(same, TN_BOOL, n);
    tn_desc all = tn__desc_repeat(&ignored, n),
            count = tn__desc_vector(c->y[3].data, c->y[3].dtype, 1);
    tn_status status = c->kernels->fill(c->ctx, &ignored, (double)o->ignore_index);
    if (status == TN_OK) {
        status = c->kernels->compare(c->ctx, TN_NE, &counts, label, &all);
    }
    if (status == TN_OK) {
        status = c->kernels->copy(c->ctx, ones, &counts);
    }
    return status == TN_OK ? c->kernels->reduce(c->ctx, TN_SUM, &count, ones) : status;
}

/* The rows' losses, in output 0 (TN_NONE) or in `rows`. */
static tn_status row_losses(tn_op_call *c, const tn_desc *rows, const tn_desc *x,
                            const tn_desc *label) {
    const tn_cross_entropy_options *o = c->args;
    tn_desc top = tn__rows_of(&c->y[1], 0), log_sum = tn__rows_of(&c->y[2], 0);
    tn_cross_entropy_args args = {.ignore_index = o->ignore_index,
                                  .label_smoothing = o->label_smoothing};
    tn_status status = c->kernels->cross_entropy(c->ctx, rows, &top, &log_sum, x, label, &args);
    if (status == TN_EINDEX) {
        tn_op_fail(
            c, status,
            "label %lld at position %lld is outside [0, %lld) and is not ignore_index (%lld)",
            (long long)c->ctx->bad_value, (long long)c->ctx->bad_position, (long long)x->size[1],
            (long long)o->ignore_index);
    }
    return status;
}

static tn_status reduced(tn_op_call *c, const tn_desc *x, const tn_desc *label) {
    const tn_cross_entropy_options *o = c->args;
    int64_t n = x->size[0];
    tn_dtype wide = c->y[0].dtype;
    size_t elements = (size_t)n * tn_dtype_size(wide),
           bytes = sizeof(int64_t) + elements + (size_t)n;
    char *scratch = c->ctx->workspace(c->ctx, bytes); /* one label, n losses, n flags */
    if (!scratch) {
        return TN_ENOMEM;
    }
    tn_desc rows = tn__desc_vector(scratch + sizeof(int64_t), wide, n),
            loss = tn__desc_vector(c->y[0].data, wide, 1);
    tn_status status = row_losses(c, &rows, x, label);
    if (status == TN_OK) {
        status = c->kernels->reduce(c->ctx, TN_SUM, &loss, &rows);
    }
    if (status == TN_OK && o->reduction == TN_MEAN) {
        status = count_rows(c, label, &rows, scratch + sizeof(int64_t) + elements, scratch);
        if (status == TN_OK) {
            status = c->kernels->binary(c->ctx, TN_DIV, &c->y[0], &c->y[0], &c->y[3]);
        }
    }
    c->ctx->workspace_free(c->ctx, scratch, bytes);
    return status;
}

static tn_status cross_entropy_forward(tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    tn__kernels k = tn__kernels_of(c);
    tn__rows x, label = {.scratch = NULL};
    tn_status status = tn__rows_open(k, &c->x[0], 1, &x);
    if (status == TN_OK) {
        status = tn__rows_open(k, &c->x[1], 0, &label);
    }
    if (status == TN_OK && o->reduction == TN_NONE) {
        tn_desc rows = tn__rows_of(&c->y[0], 0);
        status = row_losses(c, &rows, &x.d, &label.d);
    } else if (status == TN_OK) {
        status = reduced(c, &x.d, &label.d);
    }
    tn__rows_close(k, &label);
    tn__rows_close(k, &x);
    return status;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Where dx goes: new memory, or with consume_logits the logits' own. A leaf's elements are the
 * program's: never those. */
static tn_tensor *room_for(tn_op_grad *g, tn_tensor *x, const tn__rows *rows) {
    const tn_cross_entropy_options *o = g->args;
    if (o->consume_logits && !tn_is_leaf(x) && !rows->scratch) {
        return tn_detach(x);
    }
    return tn__grad_new(g, true, tn_shape(x), tn_dtype_of(x));
}

static void cross_entropy_backward(tn_op_grad *g) {
    const tn_cross_entropy_options *o = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0), *label = tn_op_saved_input(g, 1),
              *top = tn_op_saved_output(g, 1), *log_sum = tn_op_saved_output(g, 2),
              *dy = g->dout[0];
    if (o->reduction == TN_MEAN) {
        dy = tn_div(dy, tn_op_saved_output(g, 3));
    }
    tn__kernels k;
    if (!tn__grad_kernels(g, (tn_tensor *[]){x, label, top, log_sum, dy}, 5, &k)) {
        return;
    }
    tn_desc xd = tn_desc_of(x), labeld = tn_desc_of(label), topd = tn_desc_of(top),
            log_sumd = tn_desc_of(log_sum), dyd = tn_desc_of(dy);
    tn__rows x_rows, label_rows = {.scratch = NULL}, dy_rows = {.scratch = NULL};
    tn_tensor *dx = NULL;
    tn_status status = tn__rows_open(k, &xd, 1, &x_rows);
    if (status == TN_OK) {
        status = tn__rows_open(k, &labeld, 0, &label_rows);
    }
    if (status == TN_OK) {
        status = tn__rows_open(k, &dyd, 0, &dy_rows);
    }
    if (status == TN_OK) {
        dx = room_for(g, x, &x_rows);
        status = tn_is_inert(dx) ? tn_error() : TN_OK;
    }
    if (status == TN_OK) {
        bool one = o->reduction != TN_NONE;
        tn_desc dxd = tn_desc_of(dx), to = tn__rows_of(&dxd, 1);
        tn_desc top_rows = tn__rows_of(&topd, 0), log_sum_rows = tn__rows_of(&log_sumd, 0);
        tn_desc dloss = one ? tn__desc_repeat(&dyd, to.size[0]) : dy_rows.d;
        tn_cross_entropy_args args = {.ignore_index = o->ignore_index,
                                      .label_smoothing = o->label_smoothing};
        status = k.table->cross_entropy_backward(k.ctx, &to, &dloss, &top_rows, &log_sum_rows,
                                                 &x_rows.d, &label_rows.d, &args);
        tn__touch(dx);
    }
    tn__rows_close(k, &dy_rows);
    tn__rows_close(k, &label_rows);
    tn__rows_close(k, &x_rows);
    if (tn__kernel_ok(status, g->op->name)) {
        tn_op_give(g, 0, dx);
    }
}

static tn_tensor *cross_entropy_compose(const tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    tn_tensor *x = tn__widen(c->in[0]), *label = c->in[1];
    int last = tn_ndim(x) - 1;
    tn_tensor *logp = tn_log_softmax(x, last);
    tn_tensor *counts = tn_ne(label, tn__constant(label, (double)o->ignore_index));
    tn_tensor *safe = tn_where(counts, label,
                               tn__constant(label, 0.0)); /* any class will do where none is read */
    tn_tensor *loss = tn_neg(tn_squeeze(tn_gather(logp, last, tn_unsqueeze(safe, last)), last));
    if (o->label_smoothing > 0.0) {
        tn_tensor *even = tn_neg(tn_mean(logp, TN_DIMS(last), false));
        loss = tn_add(tn_mul_scalar(loss, 1.0 - o->label_smoothing),
                      tn_mul_scalar(even, o->label_smoothing));
    }
    loss = tn_where(counts, loss, tn__constant(loss, 0.0));
    if (o->reduction == TN_NONE) {
        return loss;
    }
    tn_tensor *sum = tn_sum_all(loss);
    return o->reduction == TN_SUM ? sum : tn_div(sum, tn_sum_all(tn_cast(counts, tn_dtype_of(x))));
}

/* ---- Samples --------------------------------------------------------------------------------- */

static void add(tn_op_samples *s, const char *text, const tn_cross_entropy_options *o,
                tn_dims logits) {
    int64_t classes = logits.size[logits.ndim - 1];
    tn_sample sample = {.text = text, .args = o, .inputs = 2};
    sample.in[0] = tn_spec_real(logits, -2.0, 2.0);
    sample.in[1] = tn_spec_index(tn__dims_leading(logits), classes);
    tn_sample_add(s, &sample);
}

/* Each reduction, labels that are ignored by their value, smoothing from none to all, rows in
 * several dimensions or none, one class, no rows, more classes than a vector register holds. */
static void cross_entropy_samples(tn_op_samples *s) {
    static const tn_cross_entropy_options mean = {TN_MEAN, -100, 0.0, false},
                                          sum = {TN_SUM, -100, 0.0, false},
                                          none = {TN_NONE, -100, 0.0, false},
                                          skip = {TN_MEAN, 2, 0.0, false},
                                          skip_sum = {TN_SUM, 0, 0.1, false},
                                          skip_none = {TN_NONE, 1, 0.25, false},
                                          smooth = {TN_MEAN, -100, 0.1, false},
                                          even = {TN_SUM, -100, 1.0, false};
    add(s, "", &mean, TN_DIMS(5, 4));
    add(s, "reduction='sum'", &sum, TN_DIMS(5, 4));
    add(s, "reduction='none'", &none, TN_DIMS(2, 3, 4));
    add(s, "ignore_index=2", &skip, TN_DIMS(12, 3));
    add(s, "ignore_index=0, label_smoothing=0.1, reduction='sum'", &skip_sum, TN_DIMS(9, 3));
    add(s, "ignore_index=1, label_smoothing=0.25, reduction='none'", &skip_none, TN_DIMS(9, 3));
    add(s, "label_smoothing=0.1", &smooth, TN_DIMS(2, 3, 5));
    add(s, "label_smoothing=1.0, reduction='sum'", &even, TN_DIMS(3, 4));
    add(s, "", &mean, TN_DIMS(6));
    add(s, "reduction='sum'", &sum, TN_DIMS(3, 1));
    add(s, "reduction='sum'", &sum, TN_DIMS(0, 3));
    add(s, "label_smoothing=0.1", &smooth, TN_DIMS(4, 67));
}

const tn_op tn__op_cross_entropy = {
    .name = "cross_entropy",
    .inputs = {"logits", "labels"},
    .args_size = sizeof(tn_cross_entropy_options),
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1) | TN_SAVES_OUTPUT(2) | TN_SAVES_OUTPUT(3),
    .shape = cross_entropy_shape,
    .forward = cross_entropy_forward,
    .backward = cross_entropy_backward,
    .compose = cross_entropy_compose,
    .kernel = TN_KERNEL(cross_entropy),
    .samples = cross_entropy_samples,
};

tn_cross_entropy_options tn_cross_entropy_defaults(void) {
    return (tn_cross_entropy_options){.reduction = TN_MEAN, .ignore_index = -100};
}

tn_tensor *tn_cross_entropy(tn_tensor *logits, tn_tensor *labels, tn_reduction how) {
    tn_cross_entropy_options options = tn_cross_entropy_defaults();
    options.reduction = how;
    return tn_cross_entropy_with(logits, labels, options);
}

tn_tensor *tn_cross_entropy_with(tn_tensor *logits, tn_tensor *labels,
                                 tn_cross_entropy_options options) {
    return tn_apply2(&tn__op_cross_entropy, &options, logits, labels);
}
