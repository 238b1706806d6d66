/* Softmax and log-softmax, and their gradients: a row is read from memory once and the later passes
 * find it in the cache. bf16, f16 and strided rows are computed in a row buffer; f64 is left to the
 * host's loops.
 */
#include "backends/cpu/rows.h"
#include "backends/softmax.h"

/* A row of -inf becomes NaN, as it must: its maximum, subtracted from itself, is NaN. */
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

static tn_status run_softmax(const tn_op_call *c, bool log_form) {
    if (!is_f32_like(c->x[0]->dtype)) { return TN_EUNSUPPORTED; }
    tn_desc to_rows = tn__softmax_rows(c->y[0], c->args),
            from_rows = tn__softmax_rows(c->x[0], c->args);
    const tn_desc *y = &to_rows, *x = &from_rows;
    int64_t n = row_length(x), count = count_of(x), height = rows_per_task(n);
    if (count == 0) { return TN_OK; }
    int64_t rows = count / n, tasks = div_up(rows, height);
    bool plain =
        x->dtype == TN_F32 && (row_stride(x) == 1 || n == 1) && (row_stride(y) == 1 || n == 1);
    int threads = team_size(tasks, count);
    size_t bytes = plain ? 0 : (size_t)(threads * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch_take(c->ctx, bytes);
    if (!plain && !buffers) { return TN_ENOMEM; }
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
    scratch_free(c->ctx, buffers, bytes);
    return TN_OK;
}

static tn_status run_softmax_back(const tn_op_back *b, bool log_form) {
    if (!is_f32_like(b->dx[0]->dtype)) { return TN_EUNSUPPORTED; }
    tn_desc dx_rows = tn__softmax_rows(b->dx[0], b->args),
            y_rows = tn__softmax_rows(b->y[0], b->args),
            dy_rows = tn__softmax_rows(b->dy[0], b->args);
    const tn_desc *dx = &dx_rows, *y = &y_rows, *dy = &dy_rows;
    int64_t n = row_length(dx), count = count_of(dx), height = rows_per_task(n);
    if (count == 0) { return TN_OK; }
    int64_t rows = count / n, tasks = div_up(rows, height);
    bool plain = dx->dtype == TN_F32 &&
                 (n == 1 || (row_stride(dx) == 1 && row_stride(y) == 1 && row_stride(dy) == 1));
    int threads = team_size(tasks, count);
    size_t bytes = plain ? 0 : (size_t)(threads * 2 * n) * sizeof(float);
    float *buffers = plain ? NULL : scratch_take(b->ctx, bytes);
    if (!plain && !buffers) { return TN_ENOMEM; }
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
    scratch_free(b->ctx, buffers, bytes);
    return TN_OK;
}

static tn_status softmax_forward(const tn_op_call *c) {
    return run_softmax(c, false);
}
static tn_status softmax_backward(const tn_op_back *b) {
    return run_softmax_back(b, false);
}
static tn_status log_softmax_forward(const tn_op_call *c) {
    return run_softmax(c, true);
}
static tn_status log_softmax_backward(const tn_op_back *b) {
    return run_softmax_back(b, true);
}

const tn_op_kernel TN_CPU(op_softmax) = {softmax_forward, softmax_backward};
const tn_op_kernel TN_CPU(op_log_softmax) = {log_softmax_forward, log_softmax_backward};
