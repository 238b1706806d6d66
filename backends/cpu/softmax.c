/* Softmax and log-softmax over the last dimension, and their gradients: a row is read from memory
 * once and then passed over while it is in the cache. bf16, f16 and strided rows are computed in a
 * row buffer; f64 is ref's.
 */
#include "backends/cpu/rows.h"

/* -inf in every place: shifting by it would give NaN - that is what a row of -inf has to become. */
static void softmax_row(float *y, const float *x, int64_t n, bool log_form) {
    float most;
    if (log_form) {
        float log_sum = (float)log(row_exp_total(x, n, &most));
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            y[i] = (x[i] - most) - log_sum;
        }
        return;
    }
    most = row_top(x, n);
    float factor = (float)(1.0 / row_exp_sum(y, x, most, n));
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] *= factor;
    }
}

static void softmax_backward_row(float *dx, const float *y, const float *dy, int64_t n,
                                 bool log_form) {
    if (log_form) {
        float sum = (float)row_sum(dy, n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            dx[i] = dy[i] - tn__expf(y[i]) * sum;
        }
        return;
    }
    float sum = (float)row_dot(dy, y, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = y[i] * (dy[i] - sum);
    }
}

tn_status TN_CPU(softmax)(tn_context *ctx, const tn_desc *y, const tn_desc *x, bool log_form) {
    if (!is_f32_like(x->dtype) || y->dtype != x->dtype) {
        return TN_CPU(ref)->softmax(ctx, y, x, log_form);
    }
    int64_t n = row_length(x), count = count_of(x), height = rows_per_task(n);
    if (count == 0) {
        return TN_OK;
    }
    int64_t rows = count / n, tasks = div_up(rows, height);
    bool plain =
        x->dtype == TN_F32 && (row_stride(x) == 1 || n == 1) && (row_stride(y) == 1 || n == 1);
    int threads = team_size(tasks, count);
    size_t bytes = plain ? 0 : (size_t)(threads * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch_take(ctx, bytes);
    if (!plain && !buffers) {
        return TN_ENOMEM;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        float *buffer = plain ? NULL : buffers + (threads > 1 ? omp_get_thread_num() : 0) * n;
        for (int64_t r = task * height; r < min_of((task + 1) * height, rows); r++) {
            char *to = desc_at(y, row_offset(y, r)), *from = desc_at(x, row_offset(x, r));
            if (plain) {
                softmax_row((float *)to, (const float *)from, n, log_form);
            } else {
                load_f32(buffer, from, x->dtype, row_stride(x), n);
                softmax_row(buffer, buffer, n, log_form);
                store_f32(to, y->dtype, row_stride(y), buffer, n);
            }
        }
    }
    scratch_free(ctx, buffers, bytes);
    return TN_OK;
}

tn_status TN_CPU(softmax_backward)(tn_context *ctx, const tn_desc *dx, const tn_desc *y,
                                   const tn_desc *dy, bool log_form) {
    if (!is_f32_like(dx->dtype) || y->dtype != dx->dtype || dy->dtype != dx->dtype) {
        return TN_CPU(ref)->softmax_backward(ctx, dx, y, dy, log_form);
    }
    int64_t n = row_length(dx), count = count_of(dx), height = rows_per_task(n);
    if (count == 0) {
        return TN_OK;
    }
    int64_t rows = count / n, tasks = div_up(rows, height);
    bool plain = dx->dtype == TN_F32 &&
                 (n == 1 || (row_stride(dx) == 1 && row_stride(y) == 1 && row_stride(dy) == 1));
    int threads = team_size(tasks, count);
    size_t bytes = plain ? 0 : (size_t)(threads * 2 * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch_take(ctx, bytes);
    if (!plain && !buffers) {
        return TN_ENOMEM;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        float *buffer = plain ? NULL : buffers + (threads > 1 ? omp_get_thread_num() : 0) * 2 * n;
        for (int64_t r = task * height; r < min_of((task + 1) * height, rows); r++) {
            char *to = desc_at(dx, row_offset(dx, r)), *value = desc_at(y, row_offset(y, r)),
                 *grad = desc_at(dy, row_offset(dy, r));
            if (plain) {
                softmax_backward_row((float *)to, (const float *)value, (const float *)grad, n,
                                     log_form);
            } else {
                load_f32(buffer, value, y->dtype, row_stride(y), n);
                load_f32(buffer + n, grad, dy->dtype, row_stride(dy), n);
                softmax_backward_row(buffer + n, buffer, buffer + n, n, log_form);
                store_f32(to, dx->dtype, row_stride(dx), buffer + n, n);
            }
        }
    }
    scratch_free(ctx, buffers, bytes);
    return TN_OK;
}
