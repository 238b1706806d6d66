/* Cross-entropy of logits with labels, forward and backward (ops/loss/cross_entropy.c has the
 * formulas).
 * Both read a row from memory once: forward keeps a running maximum. f64, and
 * gradients that a forward makes ahead, are left to the host's loops.
 */
#include "backends/cpu/rows.h"
#include "backends/cross_entropy.h"

static inline int64_t label_at(const tn_desc *label, int64_t i) {
    const void *p = desc_at(label, i * label->stride[0]);
    return label->dtype == TN_I64 ? *(const int64_t *)p : *(const int32_t *)p;
}

/* The column of row i's label. */
static inline int64_t target_at(const tn_cross_entropy_args *args, const tn_desc *label, int64_t i,
                                int64_t n) {
    return tn__target_of(args, label_at(label, i), n);
}

static tn_status check_labels(tn_context *ctx, const tn_cross_entropy_args *args,
                              const tn_desc *label, int64_t n) {
    for (int64_t i = 0; i < label->size[0]; i++) {
        if (target_at(args, label, i, n) == TN__OUTSIDE) {
            ctx->bad_position = i;
            ctx->bad_value = label_at(label, i);
            return TN_EINDEX;
        }
    }
    return TN_OK;
}

static bool loss_handles(const tn_desc *loss, const tn_desc *top, const tn_desc *log_sum,
                         const tn_desc *x, const tn_desc *label) {
    return is_f32_like(x->dtype) && loss->dtype == TN_F32 && top->dtype == TN_F32 &&
           log_sum->dtype == TN_F32 && (label->dtype == TN_I64 || label->dtype == TN_I32);
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

static void loss_row(const float *x, int64_t n, int64_t target, const tn_cross_entropy_args *args,
                     float *loss, float *top, float *log_sum) {
    double log_total = log(row_exp_total(x, n, top)), s = args->label_smoothing, value = 0;
    if (target >= 0) {
        value = (1 - s) * (log_total - ((double)x[target] - (double)*top));
        value += s > 0 ? s * (log_total - mean_below(x, n, *top)) : 0;
    }
    *loss = (float)value;
    *log_sum = (float)log_total;
}

static tn_status cross_entropy_forward(const tn_op_call *c) {
    const tn_cross_entropy_args *args = c->args;
    const tn_desc *x = c->x[0], *label = c->x[1], *loss = c->y[0], *top = c->y[1],
                  *log_sum = c->y[2];
    int64_t rows = x->size[0], n = x->size[1];
    if (args->ahead != 0 || !loss_handles(loss, top, log_sum, x, label) || n == 0) {
        return TN_EUNSUPPORTED;
    }
    tn_status status = check_labels(c->ctx, args, label, n);
    if (status != TN_OK || rows == 0) { return status; }
    bool plain = x->dtype == TN_F32 && (x->stride[1] == 1 || n == 1);
    int64_t height = rows_per_task(n), tasks = div_up(rows, height);
    int threads = team_size(tasks, rows * n);
    size_t bytes = plain ? 0 : (size_t)(threads * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch_take(c->ctx, bytes);
    if (!plain && !buffers) { return TN_ENOMEM; }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        float *buffer = plain ? NULL : buffers + (threads > 1 ? omp_get_thread_num() : 0) * n;
        for (int64_t r = task * height; r < min_of((task + 1) * height, rows); r++) {
            const float *row =
                row_f32(buffer, desc_at(x, r * x->stride[0]), x->dtype, x->stride[1], n);
            loss_row(row, n, target_at(args, label, r, n), args, float_at(loss, r),
                     float_at(top, r), float_at(log_sum, r));
        }
    }
    scratch_free(c->ctx, buffers, bytes);
    return TN_OK;
}

/* What backward reads of a row besides its logits. */
typedef struct row_facts {
    int64_t target;
    float g, top, log_sum;
} row_facts;

static row_facts facts_of(int64_t row, int64_t target, const tn_desc *dloss, const tn_desc *top,
                          const tn_desc *log_sum) {
    return (row_facts){.target = target,
                       .g = *float_at(dloss, row),
                       .top = *float_at(top, row),
                       .log_sum = *float_at(log_sum, row)};
}

/* dx = g (exp(x - top - log_sum) - s / n), minus (1 - s) g at the target. dx may be x. */
static void gradient_row(float *dx, const float *x, int64_t n, row_facts f, double s) {
    if (f.target == TN__IGNORED) {
        memset(dx, 0, (size_t)n * sizeof *dx);
        return;
    }
    bool here = f.target >= 0;
    float even = (float)(s / (double)n), p = here ? tn__expf(x[f.target] - f.top - f.log_sum) : 0;
    double wanted = (1 - s) + s / (double)n;
    const float low = exp_low;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = f.g * (exp_down(x[i] - f.top - f.log_sum, low) - even);
    }
    if (here) { dx[f.target] = (float)((double)f.g * ((double)p - wanted)); }
}

static tn_status cross_entropy_backward(const tn_op_back *b) {
    const tn_cross_entropy_args *args = b->args;
    if (args->ahead != 0) { /* the call has dx and dy alone */
        return TN_EUNSUPPORTED;
    }
    const tn_desc *dx = b->dx[0], *dloss = b->dy[0], *top = b->y[1], *log_sum = b->y[2],
                  *x = b->x[0], *label = b->x[1];
    int64_t rows = x->size[0], n = x->size[1];
    if (!loss_handles(dloss, top, log_sum, x, label) || n == 0) { return TN_EUNSUPPORTED; }
    tn_status status = check_labels(b->ctx, args, label, n);
    if (status != TN_OK || rows == 0) { return status; }
    bool plain = x->dtype == TN_F32 && (n == 1 || (x->stride[1] == 1 && dx->stride[1] == 1));
    int64_t height = rows_per_task(n), tasks = div_up(rows, height);
    int threads = team_size(tasks, rows * n);
    size_t bytes = plain ? 0 : (size_t)(threads * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch_take(b->ctx, bytes);
    if (!plain && !buffers) { return TN_ENOMEM; }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        float *buffer = plain ? NULL : buffers + (threads > 1 ? omp_get_thread_num() : 0) * n;
        for (int64_t r = task * height; r < min_of((task + 1) * height, rows); r++) {
            char *to = desc_at(dx, r * dx->stride[0]), *from = desc_at(x, r * x->stride[0]);
            row_facts facts = facts_of(r, target_at(args, label, r, n), dloss, top, log_sum);
            if (plain) {
                gradient_row((float *)to, (const float *)from, n, facts, args->label_smoothing);
            } else {
                load_f32(buffer, from, x->dtype, x->stride[1], n);
                gradient_row(buffer, buffer, n, facts, args->label_smoothing);
                store_f32(to, dx->dtype, dx->stride[1], buffer, n);
            }
        }
    }
    scratch_free(b->ctx, buffers, bytes);
    return TN_OK;
}

const tn_op_kernel TN_CPU(op_cross_entropy) = {cross_entropy_forward, cross_entropy_backward};
