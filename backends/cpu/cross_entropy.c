/* Cross-entropy of logits with labels, forward and backward (ref/cross_entropy.c has the formulas).
 * Both read a row from memory once: forward keeps a running maximum. f64 is ref's.
 */
#include "backends/cpu/rows.h"
#include "backends/cpu/table.h"

static inline int64_t label_at(const tn_desc *label, int64_t i) {
    const void *p = at(label, i * label->stride[0]);
    return label->dtype == TN_I64 ? *(const int64_t *)p : *(const int32_t *)p;
}

static tn_status check_labels(tn_context *ctx, const tn_desc *label, int64_t classes,
                              int64_t ignore_index) {
    for (int64_t i = 0; i < label->size[0]; i++) {
        int64_t value = label_at(label, i);
        if (value != ignore_index && (value < 0 || value >= classes)) {
            ctx->bad_position = i;
            ctx->bad_value = value;
            return TN_EINDEX;
        }
    }
    return TN_OK;
}

static bool handles(const tn_desc *a, const tn_desc *lse, const tn_desc *x, const tn_desc *label) {
    return is_f32_like(x->dtype) && a->dtype == TN_F32 && lse->dtype == TN_F32 &&
           (label->dtype == TN_I64 || label->dtype == TN_I32);
}

static void loss_row(const float *x, int64_t n, int64_t target, const tn_cross_entropy_args *args,
                     float *loss, float *lse) {
    float most;
    double total = row_exp_total(x, n, &most), log_sum = (double)most + log(total);
    double s = args->label_smoothing, value = 0;
    if (target != args->ignore_index) {
        value = (1 - s) * (log_sum - (double)x[target]);
        value += s > 0 ? s * (log_sum - row_sum(x, n) / (double)n) : 0;
    }
    *loss = (float)value;
    *lse = (float)log_sum;
}

tn_status TN_CPU(cross_entropy)(tn_context *ctx, const tn_desc *loss, const tn_desc *lse,
                                const tn_desc *x, const tn_desc *label,
                                const tn_cross_entropy_args *args) {
    int64_t rows = x->size[0], n = x->size[1];
    if (!handles(loss, lse, x, label) || n == 0) {
        return TN_CPU(ref)->cross_entropy(ctx, loss, lse, x, label, args);
    }
    tn_status status = check_labels(ctx, label, n, args->ignore_index);
    if (status != TN_OK || rows == 0) {
        return status;
    }
    bool plain = x->dtype == TN_F32 && (x->stride[1] == 1 || n == 1);
    int64_t height = rows_per_task(n), tasks = div_up(rows, height);
    int threads = team(tasks, rows * n);
    size_t bytes = plain ? 0 : (size_t)(threads * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch(ctx, bytes);
    if (!plain && !buffers) {
        return TN_ENOMEM;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        float *buffer = plain ? NULL : buffers + (threads > 1 ? omp_get_thread_num() : 0) * n;
        for (int64_t r = task * height; r < min64((task + 1) * height, rows); r++) {
            const float *row = row_f32(buffer, at(x, r * x->stride[0]), x->dtype, x->stride[1], n);
            loss_row(row, n, label_at(label, r), args, (float *)at(loss, r * loss->stride[0]),
                     (float *)at(lse, r * lse->stride[0]));
        }
    }
    scratch_free(ctx, buffers, bytes);
    return TN_OK;
}

/* dx = g (exp(x - lse) - s / n), and (1 - s) g less at the target. dx may be x. */
static void gradient_row(float *dx, const float *x, int64_t n, int64_t target, float g, float lse,
                         double s, bool ignored) {
    if (ignored) {
        memset(dx, 0, (size_t)n * sizeof *dx);
        return;
    }
    float even = (float)(s / (double)n), p = tn__expf(x[target] - lse);
    double wanted = (1 - s) + s / (double)n;
    const float low = exp_low;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = g * (exp_down(x[i] - lse, low) - even);
    }
    dx[target] = (float)((double)g * ((double)p - wanted));
}

tn_status TN_CPU(cross_entropy_backward)(tn_context *ctx, const tn_desc *dx, const tn_desc *dloss,
                                         const tn_desc *lse, const tn_desc *x, const tn_desc *label,
                                         const tn_cross_entropy_args *args) {
    int64_t rows = x->size[0], n = x->size[1];
    if (!handles(dloss, lse, x, label) || dx->dtype != x->dtype || n == 0) {
        return TN_CPU(ref)->cross_entropy_backward(ctx, dx, dloss, lse, x, label, args);
    }
    tn_status status = check_labels(ctx, label, n, args->ignore_index);
    if (status != TN_OK || rows == 0) {
        return status;
    }
    bool plain = x->dtype == TN_F32 && (n == 1 || (x->stride[1] == 1 && dx->stride[1] == 1));
    int64_t height = rows_per_task(n), tasks = div_up(rows, height);
    int threads = team(tasks, rows * n);
    size_t bytes = plain ? 0 : (size_t)(threads * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch(ctx, bytes);
    if (!plain && !buffers) {
        return TN_ENOMEM;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        float *buffer = plain ? NULL : buffers + (threads > 1 ? omp_get_thread_num() : 0) * n;
        for (int64_t r = task * height; r < min64((task + 1) * height, rows); r++) {
            char *to = at(dx, r * dx->stride[0]), *from = at(x, r * x->stride[0]);
            float g = *(const float *)at(dloss, r * dloss->stride[0]),
                  log_sum = *(const float *)at(lse, r * lse->stride[0]);
            int64_t target = label_at(label, r);
            bool ignored = target == args->ignore_index;
            if (plain) {
                gradient_row((float *)to, (const float *)from, n, target, g, log_sum,
                             args->label_smoothing, ignored);
            } else {
                load_f32(buffer, from, x->dtype, x->stride[1], n);
                gradient_row(buffer, buffer, n, target, g, log_sum, args->label_smoothing, ignored);
                store_f32(to, dx->dtype, dx->stride[1], buffer, n);
            }
        }
    }
    scratch_free(ctx, buffers, bytes);
    return TN_OK;
}
