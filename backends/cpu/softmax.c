/* Softmax and log-softmax, and their gradients: a row is read from memory once and the later passes
 * find it in the cache. bf16, f16 and strided rows are computed in a row buffer; f64 is left to the
 * host's loops.
 */
#include "backends/cpu/rows.h"
#include "backends/softmax.h"

/* The length of a row, and which form. */
typedef struct form {
    int64_t n;
    bool log_form;
} form;

/* A row of -inf becomes NaN, as it must: its maximum, subtracted from itself, is NaN. */
static void forward_body(const void *user, int64_t row, float *y, const float *const *rows) {
    const form *f = user;
    const float *x = rows[0];
    int64_t n = f->n;
    float most;
    if (f->log_form) {
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

static void backward_body(const void *user, int64_t row, float *dx, const float *const *rows) {
    const form *f = user;
    const float *y = rows[0], *dy = rows[1];
    int64_t n = f->n;
    if (f->log_form) {
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
    tn_desc y = tn__softmax_rows(c->y[0], c->args), x = tn__softmax_rows(c->x[0], c->args);
    form f = {row_length(&x), log_form};
    return walk_rows(c->ctx, &(row_walk){&y, {&x}, forward_body, &f});
}

static tn_status run_softmax_back(const tn_op_back *b, bool log_form) {
    if (!is_f32_like(b->dx[0]->dtype)) { return TN_EUNSUPPORTED; }
    tn_desc dx = tn__softmax_rows(b->dx[0], b->args), y = tn__softmax_rows(b->y[0], b->args),
            dy = tn__softmax_rows(b->dy[0], b->args);
    form f = {row_length(&dx), log_form};
    return walk_rows(b->ctx, &(row_walk){&dx, {&y, &dy}, backward_body, &f});
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
