/* Cross-entropy of logits with labels, forward and backward (ops/loss/cross_entropy.c has the
 * formulas).
 * Both read a row from memory once: forward keeps a running maximum. f64, and
 * gradients that a forward makes ahead, are left to the host's loops.
 */
#include "backends/cpu/rows.h"
#include "backends/cross_entropy.h"

/* The column of row i's label. */
static inline int64_t target_at(const tn_cross_entropy_args *args, const tn_desc *label, int64_t i,
                                int64_t n) {
    return tn__target_of(args, index_at(label, i * label->stride[0]), n);
}

/* The operands besides the logits, of n columns; backward's loss is its gradient. */
typedef struct losses {
    const tn_cross_entropy_args *args;
    const tn_desc *loss, *top, *log_sum, *label;
    int64_t n;
} losses;

static tn_status check_labels(tn_context *ctx, const losses *l) {
    for (int64_t i = 0; i < l->label->size[0]; i++) {
        if (target_at(l->args, l->label, i, l->n) == TN__OUTSIDE) {
            return bad_index(ctx, i, index_at(l->label, i * l->label->stride[0]));
        }
    }
    return TN_OK;
}

static bool loss_handles(const losses *l, const tn_desc *x) {
    return l->args->ahead == 0 && l->n > 0 && is_f32_like(x->dtype) && l->loss->dtype == TN_F32 &&
           l->top->dtype == TN_F32 && l->log_sum->dtype == TN_F32 && is_index(l->label->dtype);
}

static inline float *float_at(const tn_desc *d, int64_t i) {
    return (float *)desc_at(d, i * d->stride[0]);
}

/* The mean of x - top, in double: in f32 a large logit would swamp the others. */
static double mean_below(const float *x, int64_t n, double top) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i] - top;
    }
    return sum / (double)n;
}

static void loss_body(const void *user, int64_t row, float *unused, const float *const *x) {
    const losses *l = user;
    float *top = float_at(l->top, row);
    int64_t target = target_at(l->args, l->label, row, l->n);
    double log_total = log(row_exp_total(x[0], l->n, top)), s = l->args->label_smoothing, value = 0;
    if (target >= 0) {
        value = (1 - s) * (log_total - ((double)x[0][target] - (double)*top));
        value += s > 0 ? s * (log_total - mean_below(x[0], l->n, *top)) : 0;
    }
    *float_at(l->loss, row) = (float)value;
    *float_at(l->log_sum, row) = (float)log_total;
}

/* dx = g (exp(x - top - log_sum) - s / n), minus (1 - s) g at the target. dx may be x. */
static void gradient_body(const void *user, int64_t row, float *dx, const float *const *x) {
    const losses *l = user;
    int64_t target = target_at(l->args, l->label, row, l->n), n = l->n;
    if (target == TN__IGNORED) {
        memset(dx, 0, (size_t)n * sizeof *dx);
        return;
    }
    const float *from = x[0], low = exp_low, g = *float_at(l->loss, row),
                top = *float_at(l->top, row), log_sum = *float_at(l->log_sum, row);
    bool here = target >= 0;
    double s = l->args->label_smoothing, wanted = (1 - s) + s / (double)n;
    float even = (float)(s / (double)n), p = here ? tn__expf(from[target] - top - log_sum) : 0;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = g * (exp_down(from[i] - top - log_sum, low) - even);
    }
    if (here) { dx[target] = (float)((double)g * ((double)p - wanted)); }
}

/* dx NULL: the losses. */
static tn_status run_losses(tn_context *ctx, const losses *l, const tn_desc *dx, const tn_desc *x) {
    if (!loss_handles(l, x)) { return TN_EUNSUPPORTED; }
    tn_status status = check_labels(ctx, l);
    return status != TN_OK
               ? status
               : walk_rows(ctx, &(row_walk){dx, {x}, dx ? gradient_body : loss_body, l});
}

static tn_status cross_entropy_forward(const tn_op_call *c) {
    losses l = {c->args, c->y[0], c->y[1], c->y[2], c->x[1], c->x[0]->size[1]};
    return run_losses(c->ctx, &l, NULL, c->x[0]);
}

/* For a gradient that was made ahead the call has dx and dy alone. */
static tn_status cross_entropy_backward(const tn_op_back *b) {
    const tn_cross_entropy_args *args = b->args;
    if (args->ahead != 0) { return TN_EUNSUPPORTED; }
    losses l = {args, b->dy[0], b->y[1], b->y[2], b->x[1], b->x[0]->size[1]};
    return run_losses(b->ctx, &l, b->dx[0], b->x[0]);
}

const tn_op_kernel TN_CPU(op_cross_entropy) = {cross_entropy_forward, cross_entropy_backward};
