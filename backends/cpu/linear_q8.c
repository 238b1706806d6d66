/* linear_q8: linear with a weight of signed bytes and a scale for each of its rows.
 *
 * With few rows of x the weight is read as it is (few_rows.h). With more, the weight is converted a
 * block at a time to x's dtype, which holds signed bytes exactly, and the sums of the usual product
 * (f32) are scaled. f64 is left to the host's loops.
 */
#include "backends/cpu/convert.h"
#include "backends/cpu/few_rows.h"

enum { WIDE = 1 << 20 }; /* elements of the weight that are widened at a time */

typedef struct quantised {
    const tn_desc *y, *x, *w;
    const float *scale, *bias; /* bias or NULL */
    void *wide;                /* (block, in), in x's dtype */
    float *sums;               /* (rows, block) */
    int64_t rows, in, block;
} quantised;

/* Rows [j0, j0 + n) of the weight, in x's dtype. */
static void widen_rows(const quantised *q, int64_t j0, int64_t n) {
    const tn_desc *w = q->w;
    int64_t size = (int64_t)size_of(q->x->dtype);
    int threads = team_size(n, n * q->in / 4);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < n; j++) {
        float strip[TILE];
        char *to = (char *)q->wide + j * q->in * size;
        for (int64_t p = 0; p < q->in; p += TILE) {
            int64_t k = min_of(TILE, q->in - p);
            load_f32(strip, desc_at(w, (j0 + j) * w->stride[0] + p * w->stride[1]), TN_I8,
                     w->stride[1], k);
            store_f32(to + p * size, q->x->dtype, 1, strip, k);
        }
    }
}

/* Scaled sums to columns [j0, j0 + n) of y. */
static void store_columns(const quantised *q, int64_t j0, int64_t n) {
    const tn_desc *y = q->y;
    int threads = team_size(q->rows, q->rows * n / 4);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < q->rows; i++) {
        float *row = q->sums + i * n;
        for (int64_t j = 0; j < n; j++) {
            row[j] = row[j] * q->scale[j0 + j] + (q->bias ? q->bias[j0 + j] : 0);
        }
        store_f32(desc_at(y, i * y->stride[0] + j0 * y->stride[1]), y->dtype, y->stride[1], row, n);
    }
}

static tn_status multiply_blocks(tn_context *ctx, const quantised *q) {
    int64_t out = q->w->size[0];
    tn_status status = TN_OK;
    for (int64_t j0 = 0; j0 < out && status == TN_OK; j0 += q->block) {
        int64_t n = min_of(q->block, out - j0);
        tn_desc x = {q->x->data,
                     q->x->dtype,
                     3,
                     {1, q->rows, q->in},
                     {0, q->x->stride[0], q->x->stride[1]}},
                w = {q->wide, q->x->dtype, 3, {1, q->in, n}, {0, 1, q->in}},
                sums = {q->sums, TN_F32, 3, {1, q->rows, n}, {0, n, 1}};
        widen_rows(q, j0, n);
        status = TN_CPU(matmul)(ctx, &sums, &x, &w, 1, 0);
        store_columns(q, j0, n);
    }
    return status;
}

static tn_status multiply_few(tn_context *ctx, const quantised *q) {
    const tn_desc *y = q->y, *x = q->x, *w = q->w;
    int64_t out = w->size[0];
    few_rows_job job = {.m = q->rows,
                        .n = out,
                        .k = q->in,
                        .alpha = 1,
                        .x = {x->data, x->dtype, x->stride[0], x->stride[1]},
                        .w = {w->data, w->dtype, w->stride[0], 1},
                        .scale = q->scale,
                        .bias = q->bias,
                        .y = y->data,
                        .dtype = y->dtype,
                        .row = y->stride[0],
                        .col = y->stride[1],
                        .threads = team_size(INT32_MAX, q->rows * out * q->in / 16)};
    return TN_CPU(few_rows)(ctx, &job);
}

static tn_status linear_q8_forward(const tn_op_call *c) {
    const tn_desc *y = c->y[0], *x = c->x[0], *w = c->x[1], *scale = c->x[2], *b = c->x[3];
    if (!is_f32_like(y->dtype)) { return TN_EUNSUPPORTED; }
    int64_t rows = x->size[0], in = x->size[1], out = w->size[0];
    if (rows == 0 || out == 0) { return TN_OK; }
    quantised q = {.y = y, .x = x, .w = w, .rows = rows, .in = in};
    bool few = rows <= FEW_ROWS && (w->stride[1] == 1 || in <= 1);
    q.block = few ? 0 : min_of(out, max_of(64, WIDE / max_of(1, in)));
    size_t wide = (size_t)(q.block * in) * size_of(x->dtype), sums = (size_t)(q.block * rows) * 4;
    size_t vectors = (size_t)(2 * out) * sizeof(float);
    TN__SCRATCH(char, memory, c->ctx, vectors + sums + wide);
    if (!memory) { return TN_ENOMEM; }
    float *first = (float *)memory;
    q.scale = row_f32(first, scale->data, scale->dtype, scale->stride[0], out);
    q.bias = b ? row_f32(first + out, b->data, b->dtype, b->stride[0], out) : NULL;
    q.sums = first + 2 * out;
    q.wide = memory + vectors + sums;
    return few ? multiply_few(c->ctx, &q) : multiply_blocks(c->ctx, &q);
}

const tn_op_kernel TN_CPU(op_linear_q8) = {linear_q8_forward, NULL};
