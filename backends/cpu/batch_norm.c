/* Batch norm, forward and backward (ops/nn/batch_norm.c has the formulas), one task per channel.
 *
 * A channel is n rows, one per sample. It is walked in pieces of up to PIECE elements that are
 * contiguous f32: a part of a long row in place, several short rows gathered (also bf16, f16 and
 * strided ones). A channel of usual size stays in the L2 cache from its first pass to its last.
 * Statistics of pieces are combined in double (Chan, Golub, LeVeque 1979), so that neither a mean
 * far from 0 nor many elements cost precision. f64 is left to the host's loops.
 */
#include "backends/batch_norm.h"
#include "backends/cpu/rows.h"

enum { PIECE = 2048, LONG_ROW = 256 };

/* An operand as (n, c, l); rows of one element per sample become one row of n. */
typedef struct planes {
    char *data;
    tn_dtype dtype;
    int64_t n, c, l;    /* sizes */
    int64_t sn, sc, sl; /* strides */
} planes;

/* False if the dimensions after the channels cannot be merged. */
static bool planes_of(planes *p, const tn_desc *d) {
    *p = (planes){.data = d->data,
                  .dtype = d->dtype,
                  .n = d->size[0],
                  .c = d->size[1],
                  .l = 1,
                  .sn = d->stride[0],
                  .sc = d->stride[1],
                  .sl = 1};
    for (int i = d->ndim - 1; i >= 2; i--) {
        if (d->size[i] == 1) { continue; }
        if (p->l == 1) {
            p->sl = d->stride[i];
        } else if (d->stride[i] != p->sl * p->l) {
            return false;
        }
        p->l *= d->size[i];
    }
    if (p->l == 1) {
        p->l = p->n;
        p->sl = p->sn;
        p->n = 1;
    }
    return is_f32_like(d->dtype);
}

/* A piece of a channel: `rows` rows from `row` on, and `length` elements of each from `from` on. */
typedef struct piece {
    int64_t row, rows, from, length;
} piece;

static int64_t piece_count(const planes *x) {
    return x->l >= LONG_ROW ? x->n * div_up(x->l, PIECE) : div_up(x->n, PIECE / x->l);
}

static piece piece_at(const planes *x, int64_t i) {
    if (x->l >= LONG_ROW) {
        int64_t parts = div_up(x->l, PIECE), from = i % parts * PIECE;
        return (piece){i / parts, 1, from, min_of(PIECE, x->l - from)};
    }
    int64_t height = PIECE / x->l, row = i * height;
    return (piece){row, min_of(height, x->n - row), 0, x->l};
}

static char *piece_row(const planes *x, int64_t channel, const piece *p, int64_t row) {
    int64_t offset = channel * x->sc + (p->row + row) * x->sn + p->from * x->sl;
    return x->data + offset * (int64_t)size_of(x->dtype);
}

/* The piece as contiguous f32: in place, or in `buffer`. */
static const float *piece_load(float *buffer, const planes *x, int64_t channel, const piece *p) {
    if (p->rows == 1) {
        return row_f32(buffer, piece_row(x, channel, p, 0), x->dtype, x->sl, p->length);
    }
    for (int64_t r = 0; r < p->rows; r++) {
        load_f32(buffer + r * p->length, piece_row(x, channel, p, r), x->dtype, x->sl, p->length);
    }
    return buffer;
}

/* Where a result is written: the memory itself, or `buffer`, which piece_store copies there. */
static float *piece_place(float *buffer, const planes *y, int64_t channel, const piece *p) {
    bool there = p->rows == 1 && y->dtype == TN_F32 && y->sl == 1;
    return there ? (float *)piece_row(y, channel, p, 0) : buffer;
}

static void piece_store(const planes *y, int64_t channel, const piece *p, const float *from,
                        const float *buffer) {
    for (int64_t r = 0; r < p->rows && from == buffer; r++) {
        store_f32(piece_row(y, channel, p, r), y->dtype, y->sl, buffer + r * p->length, p->length);
    }
}

static float vector_at(const tn_desc *d, int64_t i, float otherwise) {
    float value = otherwise;
    if (d) { load_f32(&value, desc_at(d, i * d->stride[0]), d->dtype, 1, 1); }
    return value;
}

static void vector_set(const tn_desc *d, int64_t i, double value) {
    if (d) {
        float rounded = (float)value;
        store_f32(desc_at(d, i * d->stride[0]), d->dtype, 1, &rounded, 1);
    }
}

/* ---- Forward --------------------------------------------------------------------------------- */

static void channel_moments(const planes *x, int64_t channel, double *mean, double *var) {
    float buffer[PIECE];
    double m = 0, squares = 0, seen = 0;
    int64_t pieces = piece_count(x);
    for (int64_t k = 0; k < pieces; k++) {
        piece p = piece_at(x, k);
        int64_t n = p.rows * p.length;
        const float *v = piece_load(buffer, x, channel, &p);
        double sum = 0, own = 0;
        float first = isfinite(v[0]) ? v[0] : 0; /* what differs from infinity is no number */
        ROW_SUM(sum, n, v[i] - first);           /* 0 where all are equal: the mean is then exact */
        double centre = (double)first + sum / (double)n;
        float near = (float)centre;
        ROW_SUM(own, n, (v[i] - near) * (v[i] - near));
        own -= ((double)near - centre) * ((double)near - centre) * (double)n;
        double all = seen + (double)n, apart = k > 0 ? centre - m : 0;
        m = k == 0 ? centre : isfinite(m) ? m + apart * ((double)n / all) : m + centre;
        squares += (own > 0 ? own : own * 0) + apart * apart * (seen * (double)n / all);
        seen = all;
    }
    *mean = m;
    *var = squares / seen;
}

static void channel_write(const planes *y, const planes *x, int64_t channel, float m, float scale,
                          float shift) {
    float in[PIECE], out[PIECE];
    int64_t pieces = piece_count(x);
    for (int64_t k = 0; k < pieces; k++) {
        piece p = piece_at(x, k);
        int64_t n = p.rows * p.length;
        const float *v = piece_load(in, x, channel, &p);
        float *to = piece_place(out, y, channel, &p);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            to[i] = (v[i] - m) * scale + shift;
        }
        piece_store(y, channel, &p, to, out);
    }
}

static tn_status batch_norm_forward(const tn_op_call *call) {
    const tn_desc *x = call->x[0], *y = call->y[0], *w = call->x[1], *b = call->x[2];
    tn__batch_moments s = tn__batch_moments_of(call->x, call->y, call->args);
    planes from, to;
    if (count_of(x) == 0 || !planes_of(&from, x) || !planes_of(&to, y) ||
        !all_f32_like(4, (const tn_desc *[]){s.mean, s.var, w, b})) {
        return TN_EUNSUPPORTED;
    }
    int threads = team_size(from.c, count_of(x));
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t c = 0; c < from.c; c++) {
        double m, v;
        if (s.given) {
            m = (double)vector_at(s.mean, c, 0);
            v = (double)vector_at(s.var, c, 0);
        } else {
            channel_moments(&from, c, &m, &v);
            vector_set(s.mean, c, m);
            vector_set(s.var, c, v);
        }
        float r = (float)(1 / sqrt(v + s.eps));
        channel_write(&to, &from, c, (float)m, r * vector_at(w, c, 1), vector_at(b, c, 0));
    }
    return TN_OK;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* sum dy and sum dy (x - m) */
static void channel_sums(const planes *dy, const planes *x, int64_t channel, float m, double *sum,
                         double *sum_h) {
    float one[PIECE], other[PIECE];
    int64_t pieces = piece_count(x);
    *sum = *sum_h = 0;
    for (int64_t k = 0; k < pieces; k++) {
        piece p = piece_at(x, k);
        int64_t n = p.rows * p.length;
        const float *g = piece_load(one, dy, channel, &p), *v = piece_load(other, x, channel, &p);
        ROW_SUM(*sum, n, g[i]);
        ROW_SUM(*sum_h, n, g[i] * (v[i] - m));
    }
}

/* dx = scale (dy - part - (x - m) slope) */
static void channel_slope(const planes *dx, const planes *dy, const planes *x, int64_t channel,
                          float m, float scale, float part, float slope) {
    float one[PIECE], other[PIECE];
    int64_t pieces = piece_count(x);
    for (int64_t k = 0; k < pieces; k++) {
        piece p = piece_at(x, k);
        int64_t n = p.rows * p.length;
        const float *g = piece_load(one, dy, channel, &p), *v = piece_load(other, x, channel, &p);
        float *to = piece_place(one, dx, channel, &p);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            to[i] = scale * (g[i] - part - (v[i] - m) * slope);
        }
        piece_store(dx, channel, &p, to, one);
    }
}

static tn_status batch_norm_backward(const tn_op_back *b) {
    const tn_desc *dx = b->dx[0], *dw = b->dx[1], *db = b->dx[2], *dy = b->dy[0], *x = b->x[0],
                  *w = b->x[1];
    tn__batch_moments s = tn__batch_moments_of(b->x, b->y, b->args);
    planes in, arrived, out = {0};
    if (tn__batch_norm_refuses(b) || count_of(x) == 0 || !planes_of(&in, x) ||
        !planes_of(&arrived, dy) || (dx && !planes_of(&out, dx)) ||
        !all_f32_like(5, (const tn_desc *[]){dw, db, s.mean, s.var, w})) {
        return TN_EUNSUPPORTED;
    }
    int threads = team_size(in.c, count_of(x));
    double each = 1 / (double)(in.n * in.l);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t c = 0; c < in.c; c++) {
        float m = vector_at(s.mean, c, 0);
        double r = 1 / sqrt((double)vector_at(s.var, c, 0) + s.eps), sum = 0, sum_h = 0;
        if (!s.given || dw || db) { channel_sums(&arrived, &in, c, m, &sum, &sum_h); }
        vector_set(dw, c, sum_h * r);
        vector_set(db, c, sum);
        if (dx) {
            double part = s.given ? 0 : sum * each, slope = s.given ? 0 : sum_h * r * r * each;
            channel_slope(&out, &arrived, &in, c, m, (float)r * vector_at(w, c, 1), (float)part,
                          (float)slope);
        }
    }
    return TN_OK;
}

const tn_op_kernel TN_CPU(op_batch_norm) = {batch_norm_forward, batch_norm_backward};
const tn_op_kernel TN_CPU(op_batch_norm_given) = {batch_norm_forward, batch_norm_backward};
