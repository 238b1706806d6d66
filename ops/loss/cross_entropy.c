/* cross_entropy(x, label) = (1 - s) (lse - x[label]) + s (lse - mean x) per row, then mean or sum
 *
 *     x: (…, C) logits, f32 f64 bf16 f16; label: (…), i64 or i32
 *     lse = log sum exp x = top + log_sum, top = max x
 *     y: 0-dimensional, or (…) with TN_NONE; f64 for f64, else f32
 *     dx = (softmax(x) - (1 - s) onehot(label) - s / C) dloss
 *     dloss = dy, divided for the mean by the number of rows that count
 *
 * s is label_smoothing (Szegedy et al. 2016, arXiv:1512.00567). Rows labelled ignore_index have
 * loss 0 and gradient 0, and do not count in the mean; when all are ignored it is 0 / 0 = NaN, as
 * in PyTorch. Saved for backward: x, and top, log_sum and the count, which are small. softmax(x) is
 * recomputed from them, so no second (…, C) is saved. top and log_sum stay separate: their sum
 * would have an error of eps times the largest logit.
 *
 * weighted_cross_entropy, whose classes have weights w: (C), any float, has no kernel:
 *
 *     (1 - s) w[label] (lse - x[label]) + s / C sum over c of w[c] (lse - x[c])       per row
 *
 * and the mean divides by the sum of the rows' w[label], as in PyTorch.
 */
#include "ops/loss/cross_entropy.h"

#include "autograd/kernel.h"
#include "autograd/node.h"
#include "backends/ref/ref.h"
#include "backends/scratch.h"
#include "ops/host.h"
#include "ops/loss/loss.h"

/* ---- Shape rule ------------------------------------------------------------------------------ */

static bool smoothing_fits(const tn_op_call *c) {
    double s = ((const tn_cross_entropy_options *)c->args)->label_smoothing;
    return (s >= 0.0 && s <= 1.0) ||
           tn_op_fail(c, TN_EVALUE, "label_smoothing is %g (it must be in [0, 1])", s);
}

static bool cross_entropy_shape(tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    if (!tn_op_shapes(c, "... classes, index: ...") || !tn__loss_reduction(c, o->reduction) ||
        !smoothing_fits(c)) {
        return false;
    }
    tn_dims label = tn_shape(c->in[1]);
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[0]));
    return tn_op_out(c, o->reduction == TN_NONE ? label : TN_DIMS(), wide) && /* loss */
           tn_op_out(c, label, wide) &&                                       /* top */
           tn_op_out(c, label, wide) &&                                       /* log_sum */
           (o->reduction != TN_MEAN || tn_op_out(c, TN_DIMS(), wide));        /* rows that count */
}

/* ---- Rows on the host ------------------------------------------------------------------------ */

/* The column of row i's label. */
static int64_t target_at(const tn_cross_entropy_args *args, const tn_desc *label, int64_t i,
                         int64_t c) {
    return tn__target_of(args, load_integer(label, i * label->stride[0]), c);
}

static tn_status check_labels(tn_context *ctx, const tn_cross_entropy_args *args,
                              const tn_desc *label, int64_t c) {
    for (int64_t i = 0; i < label->size[0]; i++) {
        if (target_at(args, label, i, c) == TN__OUTSIDE) {
            return tn__host_bad_index(ctx, i, load_integer(label, i * label->stride[0]));
        }
    }
    return TN_OK;
}

/* dx = g (exp(x - max - log_total) - (1 - s) [at the target] - s / c) in row i. */
static void store_gradient(const tn_cross_entropy_args *args, const tn_desc *dx, const tn_desc *x,
                           int64_t i, int64_t target, double g, double max, double log_total) {
    int64_t c = x->size[1];
    double s = args->label_smoothing;
    for (int64_t j = 0; j < c; j++) {
        double wanted = (j == target ? 1 - s : 0) + s / (double)c;
        double p = exp(load_float(x, i * x->stride[0] + j * x->stride[1]) - max - log_total);
        store_float(dx, i * dx->stride[0] + j * dx->stride[1],
                    target == TN__IGNORED ? 0 : g * (p - wanted));
    }
}

static tn_status rows_host(const tn_op_call *call) {
    const tn_cross_entropy_args *args = call->args;
    const tn_desc *x = call->x[0], *label = call->x[1], *loss = call->y[0], *top = call->y[1],
                  *log_sum = call->y[2];
    int64_t rows = x->size[0], c = x->size[1];
    tn_status status = check_labels(call->ctx, args, label, c);
    for (int64_t i = 0; i < rows && status == TN_OK; i++) {
        int64_t row = i * x->stride[0], target = target_at(args, label, i, c);
        double max = -INFINITY, sum = 0, below = 0, s = args->label_smoothing, value = 0;
        for (int64_t j = 0; j < c; j++) {
            max = fmax(max, load_float(x, row + j * x->stride[1]));
        }
        for (int64_t j = 0; j < c; j++) {
            double shifted = load_float(x, row + j * x->stride[1]) - max;
            below += shifted;
            sum += exp(shifted);
        }
        if (target >= 0) {
            value = (1 - s) * (log(sum) - (load_float(x, row + target * x->stride[1]) - max));
            value += s > 0 ? s * (log(sum) - below / (double)c)
                           : 0; /* a logit of -inf must not make 0 * inf */
        }
        store_float(loss, i * loss->stride[0], value);
        store_float(top, i * top->stride[0], max);
        store_float(log_sum, i * log_sum->stride[0], log(sum));
        if (args->ahead != 0) {
            store_gradient(args, call->y[3], x, i, target, load_float(call->y[4], 0), max,
                           log(sum));
        }
    }
    return status;
}

/* The backward of a gradient that the forward has made. */
static tn_status rescale_host(const tn_op_back *b) {
    const tn_cross_entropy_args *args = b->args;
    const tn_desc *dx = b->dx[0];
    double factor = load_float(b->dy[0], 0) / args->ahead;
    for (int64_t i = 0; factor != 1 && i < dx->size[0] * dx->size[1]; i++) {
        int64_t at = i / dx->size[1] * dx->stride[0] + i % dx->size[1] * dx->stride[1];
        store_float(dx, at, load_float(dx, at) * factor);
    }
    return TN_OK;
}

static tn_status rows_host_back(const tn_op_back *b) {
    const tn_cross_entropy_args *args = b->args;
    const tn_desc *x = b->x[0], *label = b->x[1], *dloss = b->dy[0], *top = b->y[1],
                  *log_sum = b->y[2];
    if (args->ahead != 0) { return rescale_host(b); }
    int64_t rows = x->size[0], c = x->size[1];
    tn_status status = check_labels(b->ctx, args, label, c);
    for (int64_t i = 0; i < rows && status == TN_OK; i++) {
        store_gradient(args, b->dx[0], x, i, target_at(args, label, i, c),
                       load_float(dloss, i * dloss->stride[0]), load_float(top, i * top->stride[0]),
                       load_float(log_sum, i * log_sum->stride[0]));
    }
    return status;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Output 3 = the number of labels that are not ignore_index. same: n bytes, ones: n elements of
 * count's dtype, key: one label; all scratch. */
static tn_status count_rows(const tn_op_call *c, const tn_desc *ones, void *same, void *key) {
    const tn_cross_entropy_options *o = c->args;
    const tn_desc *label = c->x[1];
    int64_t n = label->size[0];
    tn_desc ignored = tn__desc_vector(key, label->dtype, 1),
            counts = tn__desc_vector(same, TN_BOOL, n), all = tn__desc_repeat(&ignored, n);
    tn_status status = c->kernels->fill(c->ctx, &ignored, (double)o->ignore_index);
    if (status == TN_OK) { status = c->kernels->compare(c->ctx, TN_NE, &counts, label, &all); }
    if (status == TN_OK) { status = c->kernels->copy(c->ctx, ones, &counts); }
    return status == TN_OK ? c->kernels->reduce(c->ctx, TN_SUM, c->y[3], ones) : status;
}

tn_status tn__cross_entropy_rows(const tn_op_call *c, const tn_cross_entropy_args *args,
                                 const tn_desc *losses) {
    tn_op_call rows = *c;
    rows.args = args;
    rows.y[0] = losses;
    tn_status status = tn_op_run(&tn__op_cross_entropy, &rows);
    if (status == TN_EINDEX) {
        tn_op_fail(
            c, status,
            "label %lld at position %lld is outside [0, %lld) and is not ignore_index (%lld)",
            (long long)c->ctx->bad_value, (long long)c->ctx->bad_position,
            (long long)(args->whole ? args->whole : c->x[0]->size[1]),
            (long long)args->ignore_index);
    }
    return status;
}

/* The rows' losses, in output 0 (TN_NONE) or in scratch memory; `ahead` and `share`, if not 0: and
 * their gradient, which is output 4. */
static tn_status row_losses(const tn_op_call *c, const tn_desc *losses, double ahead,
                            const tn_desc *share) {
    const tn_cross_entropy_options *o = c->args;
    tn_cross_entropy_args args = {
        .ignore_index = o->ignore_index, .label_smoothing = o->label_smoothing, .ahead = ahead};
    tn_op_call rows = *c;
    rows.y[3] = c->y[4];
    rows.y[4] = share;
    return tn__cross_entropy_rows(&rows, &args, losses);
}

/* The sum or the mean. */
static tn_status reduced_loss(const tn_op_call *c, double ahead) {
    const tn_cross_entropy_options *o = c->args;
    int64_t n = c->x[0]->size[0];
    tn_dtype wide = c->y[0]->dtype;
    size_t elements = (size_t)n * tn_dtype_size(wide), first = 2 * sizeof(int64_t);
    /* one piece: a label, a share, n losses, n flags */
    TN__SCRATCH(char, scratch, c->ctx, first + elements + (size_t)n);
    if (!scratch) { return TN_ENOMEM; }
    tn_desc losses = tn__desc_vector(scratch + first, wide, n),
            share = tn__desc_vector(scratch + sizeof(int64_t), wide, 1);
    tn_status status = TN_OK;
    if (o->reduction == TN_MEAN) {
        status = count_rows(c, &losses, scratch + first + elements, scratch);
    }
    if (status == TN_OK && ahead != 0) {
        tn_desc count = tn__desc_vector(c->y[3]->data, wide, 1);
        status = c->kernels->unary(c->ctx, TN_RDIV_K, &share, &count, ahead, 0);
    }
    status = status == TN_OK ? row_losses(c, &losses, ahead, &share) : status;
    if (status == TN_OK) { status = c->kernels->reduce(c->ctx, TN_SUM, c->y[0], &losses); }
    return status == TN_OK && o->reduction == TN_MEAN
               ? c->kernels->binary(c->ctx, TN_DIV, c->y[0], c->y[0], c->y[3])
               : status;
}

static tn_status cross_entropy_forward(const tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    return o->reduction == TN_NONE ? row_losses(c, c->y[0], 0, NULL) : reduced_loss(c, 0);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Whether an operation filled the logits' memory, and no two elements share an address. A leaf's
 * elements are the program's, even through views. */
static bool can_be_consumed(const tn_tensor *x) {
    const tn_node *node = x->node;
    while (node && !tn__op_fills(node->op)) {
        node = node->edges[0].node;
    }
    return node && tn_is_contiguous(x);
}

tn_tensor *tn__cross_entropy_dx_out(tn_op_grad *g, int i, tn_tensor *const *made) {
    const tn_cross_entropy_options *o = g->args;
    tn_tensor *x = tn_op_saved_input(g, i);
    return o->consume_logits && can_be_consumed(x) ? tn_detach(x) : NULL;
}

static tn_status gradient_of_rows(const tn_op_back *b, const tn_desc *dloss) {
    const tn_cross_entropy_options *o = b->args;
    tn_cross_entropy_args args = {.ignore_index = o->ignore_index,
                                  .label_smoothing = o->label_smoothing};
    tn_desc all = *dloss;
    if (o->reduction != TN_NONE) { all = tn__desc_repeat(dloss, b->x[0]->size[0]); }
    tn_op_back rows = *b;
    rows.args = &args;
    rows.dy[0] = &all;
    return tn_op_run_back(&tn__op_cross_entropy, &rows);
}

static tn_status cross_entropy_backward_kernel(const tn_op_back *b) {
    const tn_cross_entropy_options *o = b->args;
    if (o->reduction != TN_MEAN) { return gradient_of_rows(b, b->dy[0]); }
    TN__SCRATCH_POOL(scratch, b);
    tn_desc share = *b->dy[0]; /* of one row: dy / count */
    if (!tn__scratch_take(&scratch, &share)) { return TN_ENOMEM; }
    tn_status status = b->kernels->binary(b->ctx, TN_DIV, &share, b->dy[0], b->y[3]);
    return status == TN_OK ? gradient_of_rows(b, &share) : status;
}

static tn_tensor *cross_entropy_compose(tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    tn_tensor *x = c->in[0], *label = c->in[1], *weight = tn__optional(c, 2);
    int last = tn_ndim(x) - 1;
    weight = weight ? tn_cast(weight, tn_dtype_of(x)) : NULL;
    tn_nll_options rows =
        TN_WITH(tn_nll, .reduction = TN_NONE, .ignore_index = o->ignore_index, .weight = weight);
    tn_tensor *counts = tn_ne(label, tn__constant(label, (double)o->ignore_index));
    x = tn_where(tn_unsqueeze(counts, last), x, tn__constant(x, 0.0)); /* may have been NaN */
    tn_tensor *logp = tn_log_softmax(x, last), *loss = tn_nll_with(logp, label, rows);
    if (o->label_smoothing > 0.0) {
        tn_tensor *all = weight ? tn_mul(logp, weight) : logp,
                  *even = tn_neg(tn_mean(all, TN_DIMS(last), false));
        even = tn_where(counts, even, tn__constant(even, 0.0));
        loss = tn_add(tn_mul_scalar(loss, 1.0 - o->label_smoothing),
                      tn_mul_scalar(even, o->label_smoothing));
    }
    if (o->reduction != TN_MEAN) { return tn__loss_reduced(loss, o->reduction); }
    /* the loss with every log-probability -1 is each row's weight */
    tn_tensor *share = tn_nll_with(tn__filled(x, tn_shape(x), -1.0), label, rows);
    return tn_div(tn_sum_all(loss), tn_sum_all(share));
}

#define OPTION_FIELDS                                     \
    TN__REDUCTION(tn_cross_entropy_options, reduction),   \
        TN_FIELD(tn_cross_entropy_options, ignore_index), \
        TN_FIELD(tn_cross_entropy_options, label_smoothing)
static const tn_cross_entropy_options plain = {.reduction = TN_MEAN, .ignore_index = -100};

const tn_op tn__op_cross_entropy = {
    .name = "cross_entropy",
    .inputs = {"logits", "labels"},
    .args_size = sizeof(tn_cross_entropy_options),
    .fields = {OPTION_FIELDS},
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1) | TN_SAVES_OUTPUT(2) | TN_SAVES_OUTPUT(3),
    .shape = cross_entropy_shape,
    .kernel = TN_FUSED(cross_entropy),
    .forward = cross_entropy_forward,
    .host = {rows_host, rows_host_back},
    .compose = cross_entropy_compose,
    .backward_kernel = cross_entropy_backward_kernel,
    .flags = TN_OP_WIDE,
    .x_rows = {TN_ROWS(1), TN_ROWS(0)},
    .y_rows = {TN_ROWS(0), TN_ROWS(0), TN_ROWS(0), TN_ROWS(0)},
    .dx_out = tn__cross_entropy_dx_out,
    /* Each reduction, labels ignored by value, smoothing from 0 to 1, rows in several dimensions
     * or none, one class, no rows, more classes than a vector register holds. */
    .samples = "{-2:2} [5, 4] [5]<4; [5, 4] [5]<4 reduction='sum'; "
               "[2, 3, 4] [2, 3]<4 reduction='none'; [12, 3] [12]<3 ignore_index=2; "
               "[9, 3] [9]<3 ignore_index=0, label_smoothing=0.1, reduction='sum'; "
               "[9, 3] [9]<3 ignore_index=1, label_smoothing=0.25, reduction='none'; "
               "[2, 3, 5] [2, 3]<5 label_smoothing=0.1; "
               "[3, 4] [3]<4 label_smoothing=1.0, reduction='sum'; [6] []<6; "
               "[3, 1] [3]<1 reduction='sum'; [0, 3] [0]<3 reduction='sum'; "
               "[4, 67] [4]<67 label_smoothing=0.1",
    .sample_args = &plain,
};

static bool weighted_cross_entropy_shape(tn_op_call *c) {
    const tn_cross_entropy_options *o = c->args;
    return smoothing_fits(c) &&
           tn__loss_labels(c, o->reduction, tn__wide_dtype(tn_dtype_of(c->in[0])));
}

const tn_op tn__op_weighted_cross_entropy = {
    .name = "weighted_cross_entropy",
    .inputs = {"logits", "labels", "weight"},
    .args_size = sizeof(tn_cross_entropy_options),
    .fields = {OPTION_FIELDS},
    .shape = weighted_cross_entropy_shape,
    .compose = cross_entropy_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-2:2, -2:2, 0.5:2} [3, 4, 5] [3, 4]<5 [5]; "
               "[3, 4, 5] [3, 4]<5 [5] reduction='sum', ignore_index=1; "
               "[3, 4, 5] [3, 4]<5 [5] ignore_index=2, label_smoothing=0.1; "
               "[3, 4, 5] [3, 4]<5 [5] reduction='none', ignore_index=0, label_smoothing=0.25",
    .sample_args = &plain,
};

/* ---- The gradient ahead of its backward ------------------------------------------------------ */

/* A mean whose forward replaces the logits by their gradient for dy = `ahead`. What a backward has
 * left to do is to multiply by dy / ahead, which is 1 if the caller was right. */
typedef struct ahead_args {
    tn_cross_entropy_options options; /* first: the shape rule and the forward read them */
    double ahead;
} ahead_args;

static bool ahead_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    return cross_entropy_shape(c) && tn_op_view(c, x->dims, x->stride, x->offset);
}

static tn_status ahead_forward(const tn_op_call *c) {
    const ahead_args *args = c->args;
    tn__touch(c->in[0]);
    return reduced_loss(c, args->ahead);
}

static tn_status ahead_backward(const tn_op_back *b) {
    const ahead_args *own = b->args;
    tn_cross_entropy_args args = {.ahead = own->ahead};
    tn_op_back rows = *b;
    rows.args = &args;
    return tn_op_run_back(&tn__op_cross_entropy, &rows);
}

static tn_tensor *ahead_dx_out(tn_op_grad *g, int i, tn_tensor *const *made) {
    return tn_op_saved_output(g, 4);
}

static void refuse_again(tn_op_grad *g) {
    tn__raise(
        TN_EUNSUPPORTED, g->op->name,
        "tn_lm_loss has replaced the logits by their gradient, which cannot be differentiated "
        "again (tn_cross_entropy of a tn_call can)");
}

static const tn_op ahead_op = {
    .name = "cross_entropy",
    .inputs = {"logits", "labels"},
    .args_size = sizeof(ahead_args),
    .saves = TN_SAVES_OUTPUT(4),
    .shape = ahead_shape,
    .forward = ahead_forward,
    .backward = refuse_again,
    .backward_kernel = ahead_backward,
    .x_rows = {TN_ROWS(1), TN_ROWS(0)},
    .y_rows = {TN_ROWS(0), TN_ROWS(0), TN_ROWS(0), TN_ROWS(0), TN_ROWS(1)},
    .dx_out = ahead_dx_out,
};

/* Whether these logits are the result of an operation, and no one else can see them. */
static bool only_ours(const tn_tensor *x) {
    return x->node && can_be_consumed(x) &&
           __atomic_load_n(&x->object.refs, __ATOMIC_ACQUIRE) == 1 &&
           __atomic_load_n(&x->storage->refs, __ATOMIC_ACQUIRE) == 1;
}

tn_tensor *tn__cross_entropy_ahead(tn_tensor *logits, tn_tensor *labels,
                                   tn_cross_entropy_options options, double ahead) {
    bool can = !tn__pending() && !tn_is_inert(logits) && tn_grad_mode() && ahead != 0 &&
               isfinite(ahead) && options.reduction == TN_MEAN && !options.weight;
    if (!can || logits->storage->device.kind == TN_CPU || logits->dtype == TN_F16 ||
        !only_ours(logits) || tn_count(logits) == 0) {
        return tn_cross_entropy_with(logits, labels, options);
    }
    return tn_apply2(&ahead_op, &(ahead_args){options, ahead}, logits, labels);
}

tn_cross_entropy_options tn_cross_entropy_defaults(void) {
    return (tn_cross_entropy_options){
        .reduction = TN_MEAN, .ignore_index = -100, .from_defaults = true};
}

tn_tensor *tn_cross_entropy(tn_tensor *logits, tn_tensor *labels, tn_reduction how) {
    tn_cross_entropy_options options = tn_cross_entropy_defaults();
    options.reduction = how;
    return tn_cross_entropy_with(logits, labels, options);
}

tn_tensor *tn_cross_entropy_with(tn_tensor *logits, tn_tensor *labels,
                                 tn_cross_entropy_options options) {
    if (!tn__options_made(options.from_defaults, "cross_entropy", "tn_cross_entropy")) {
        return tn_inert();
    }
    tn_tensor *weight = options.weight;
    options.weight = NULL; /* an input, which args do not hold */
    return weight ? tn_apply3(&tn__op_weighted_cross_entropy, &options, logits, labels, weight)
                  : tn_apply2(&tn__op_cross_entropy, &options, logits, labels);
}
