/* Layer norm and RMS norm, forward and backward (ops/nn/layer_norm.c and rms_norm.c have the
 * formulas). All passes over a row but the first find it in the cache.
 *
 * dw and db are column sums over all rows: each band of rows (its height depends on the shape
 * alone) sums its own, and the bands are then added in order. Rows that are not contiguous f32 pass
 * through buffers; f64 is left to the host's loops.
 */
#include "backends/cpu/rows.h"
#include "backends/norm.h"

static bool f32_vector(const tn_desc *d) { /* NULL, or n f32 */
    return !d || d->dtype == TN_F32;
}
static float value_at(const tn_desc *d, int64_t i) {
    return *(const float *)desc_at(d, i * d->stride[0]);
}
static void set_at(const tn_desc *d, int64_t i, float value) {
    if (d) { *(float *)desc_at(d, i * d->stride[0]) = value; }
}

/* The operands of a forward besides x and y. Without `centred`, RMS norm. */
typedef struct forward {
    const tn_desc *mean, *rstd;
    const float *w, *b; /* or NULL */
    int64_t c;
    double eps;
    bool centred;
} forward;

/* y = (x - mean) rstd w + b; y may be x. */
static void forward_body(const void *user, int64_t row, float *y, const float *const *rows) {
    const forward *f = user;
    const float *x = rows[0], *w = f->w, *b = f->b;
    int64_t c = f->c;
    double squares = 0, sum = 0;
    float m = 0, first = x[0];
    if (f->centred) {
        ROW_SUM(sum, c, x[i] - first); /* 0 in a constant row: its mean is then exact */
        m = (float)((double)first + sum / (double)c);
    }
    ROW_SUM(squares, c, (x[i] - m) * (x[i] - m));
    float r = (float)(1 / sqrt(squares / (double)c + f->eps));
    if (w && b) {
#pragma omp simd
        for (int64_t i = 0; i < c; i++) {
            y[i] = (x[i] - m) * r * w[i] + b[i];
        }
    } else {
        for (int64_t i = 0; i < c; i++) {
            y[i] = (x[i] - m) * r * (w ? w[i] : 1) + (b ? b[i] : 0);
        }
    }
    set_at(f->mean, row, m);
    set_at(f->rstd, row, r);
}

static tn_status norm_forward(tn_context *ctx, forward f, const tn_desc *y, const tn_desc *x,
                              const tn_desc *w, const tn_desc *b) {
    bool handles = all_f32_like(4, (const tn_desc *[]){x, y, w, b}) && f32_vector(f.mean) &&
                   f32_vector(f.rstd) && x->size[0] > 0 && x->size[1] > 0;
    if (!handles) { return TN_EUNSUPPORTED; }
    f.c = x->size[1];
    TN__SCRATCH(float, vectors, ctx, 2 * f.c);
    if (!vectors) { return TN_ENOMEM; }
    f.w = w ? row_f32(vectors, w->data, w->dtype, w->stride[0], f.c) : NULL;
    f.b = b ? row_f32(vectors + f.c, b->data, b->dtype, b->stride[0], f.c) : NULL;
    return walk_rows(ctx, &(row_walk){y, {x}, forward_body, &f});
}

static tn_status layer_norm_forward(const tn_op_call *c) {
    const tn_norm_args *args = c->args;
    forward f = {.mean = c->y[1], .rstd = c->y[2], .eps = args->eps, .centred = true};
    return norm_forward(c->ctx, f, c->y[0], c->x[0], c->x[1], c->x[2]);
}

static tn_status rms_norm_forward(const tn_op_call *c) {
    const tn_norm_args *args = c->args;
    forward f = {.rstd = c->y[1], .eps = args->eps};
    return norm_forward(c->ctx, f, c->y[0], c->x[0], c->x[1], NULL);
}

/* ---- Backward -------------------------------------------------------------------------------- */

typedef struct backward {
    const tn_desc *dx, *dw, *db, *dy, *x, *mean, *rstd;
    const float *w; /* ones when there is none */
} backward;

/* dx = r (g - mean(g) - h mean(g h)) with g = dy w, h = (x - m) r. dx may be dy's or x's memory. */
static void norm_backward_row(float *dx, const float *dy, const float *x, const float *w, int64_t c,
                              float m, float r, bool centred) {
    double sum_g = 0, sum_gh = 0;
    if (centred) { ROW_SUM(sum_g, c, dy[i] * w[i]); }
    ROW_SUM(sum_gh, c, dy[i] * w[i] * ((x[i] - m) * r));
    float mean_g = (float)(sum_g / (double)c), mean_gh = (float)(sum_gh / (double)c);
#pragma omp simd
    for (int64_t i = 0; i < c; i++) {
        dx[i] = r * (dy[i] * w[i] - mean_g - (x[i] - m) * r * mean_gh);
    }
}

/* The band's column sums. */
static void add_columns(float *restrict dw, float *restrict db, const float *restrict dy,
                        const float *restrict x, int64_t c, float m, float r) {
    if (dw) {
#pragma omp simd
        for (int64_t i = 0; i < c; i++) {
            dw[i] += dy[i] * ((x[i] - m) * r);
        }
    }
    if (db) {
#pragma omp simd
        for (int64_t i = 0; i < c; i++) {
            db[i] += dy[i];
        }
    }
}

/* Rows [first, last). `buffer` holds 2 c. */
static void backward_band(const backward *b, int64_t first, int64_t last, float *dw, float *db,
                          float *buffer) {
    int64_t c = b->x->size[1];
    if (dw) { memset(dw, 0, (size_t)c * sizeof *dw); }
    if (db) { memset(db, 0, (size_t)c * sizeof *db); }
    for (int64_t r = first; r < last; r++) {
        const float *dy = row_f32(buffer, desc_at(b->dy, r * b->dy->stride[0]), b->dy->dtype,
                                  b->dy->stride[1], c);
        const float *x = row_f32(buffer + c, desc_at(b->x, r * b->x->stride[0]), b->x->dtype,
                                 b->x->stride[1], c);
        float m = b->mean ? value_at(b->mean, r) : 0, s = value_at(b->rstd, r);
        add_columns(dw, db, dy, x, c, m, s);
        if (b->dx) {
            char *to = desc_at(b->dx, r * b->dx->stride[0]);
            if (b->dx->dtype == TN_F32 && (b->dx->stride[1] == 1 || c == 1)) {
                norm_backward_row((float *)to, dy, x, b->w, c, m, s, b->mean != NULL);
            } else {
                norm_backward_row(buffer, dy, x, b->w, c, m, s, b->mean != NULL);
                store_f32(to, b->dx->dtype, b->dx->stride[1], buffer, c);
            }
        }
    }
}

/* One vector from the bands' partial sums, added in order in double. */
static void add_bands(const tn_desc *y, const float *partial, int64_t bands, int64_t step,
                      int64_t c) {
    if (!y) { return; }
    for (int64_t from = 0; from < c; from += 256) {
        int64_t n = min_of(256, c - from);
        double sum[256] = {0};
        float rounded[256];
        for (int64_t k = 0; k < bands; k++) {
            for (int64_t i = 0; i < n; i++) {
                sum[i] += (double)partial[k * step + from + i];
            }
        }
        for (int64_t i = 0; i < n; i++) {
            rounded[i] = (float)sum[i];
        }
        store_f32(desc_at(y, from * y->stride[0]), y->dtype, y->stride[0], rounded, n);
    }
}

static tn_status norm_backward(tn_context *ctx, backward *b, const tn_desc *w) {
    enum { MOST_BANDS = 64 };
    bool handles = all_f32_like(6, (const tn_desc *[]){b->dx, b->dw, b->db, b->dy, b->x, w}) &&
                   f32_vector(b->mean) && f32_vector(b->rstd) && b->x->size[0] > 0 &&
                   b->x->size[1] > 0;
    if (!handles) { return TN_EUNSUPPORTED; }
    int64_t rows = b->x->size[0], c = b->x->size[1];
    int64_t height = max_of(rows_per_task(c), div_up(rows, MOST_BANDS)),
            bands = div_up(rows, height);
    int threads = team_size(bands, rows * c);
    int64_t step = (2 * c + 15) / 16 * 16; /* dw and db of one band */
    TN__SCRATCH(float, memory, ctx, c + bands * step + threads * step);
    if (!memory) { return TN_ENOMEM; }
    float *partial = memory + c, *buffers = partial + bands * step;
    b->w = w ? row_f32(memory, w->data, w->dtype, w->stride[0], c) : memory;
    for (int64_t i = 0; i < c && !w; i++) {
        memory[i] = 1;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t band = 0; band < bands; band++) {
        float *mine = partial + band * step,
              *buffer = buffers + (threads > 1 ? omp_get_thread_num() : 0) * step;
        backward_band(b, band * height, min_of((band + 1) * height, rows), b->dw ? mine : NULL,
                      b->db ? mine + c : NULL, buffer);
    }
    add_bands(b->dw, partial, bands, step, c);
    add_bands(b->db, partial + c, bands, step, c);
    return TN_OK;
}

static tn_status layer_norm_backward(const tn_op_back *b) {
    backward job = {.dx = b->dx[0],
                    .dw = b->dx[1],
                    .db = b->dx[2],
                    .dy = b->dy[0],
                    .x = b->x[0],
                    .mean = b->y[1],
                    .rstd = b->y[2]};
    return norm_backward(b->ctx, &job, b->x[1]);
}

static tn_status rms_norm_backward(const tn_op_back *b) {
    backward job = {.dx = b->dx[0], .dw = b->dx[1], .dy = b->dy[0], .x = b->x[0], .rstd = b->y[1]};
    return norm_backward(b->ctx, &job, b->x[1]);
}

const tn_op_kernel TN_CPU(op_layer_norm) = {layer_norm_forward, layer_norm_backward};
const tn_op_kernel TN_CPU(op_rms_norm) = {rms_norm_forward, rms_norm_backward};
