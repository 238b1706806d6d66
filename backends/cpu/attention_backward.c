/* Attention, backward (ops/nn/attention.c has the formulas):
 * tiles of probabilities are recomputed from lse.
 *
 * A task is one group of keys and values with all query heads that use it. It walks heads, tiles of
 * keys and tiles of queries in a fixed order and adds to dq, dk and dv in its own buffers, so the
 * order of the sums is fixed. For each pair of tiles:
 *
 *     p = exp(scale q k^T - lse)      dv += p^T dy
 *     ds = p (dy v^T - delta)         dq += ds k          dk += ds^T (scale q)
 *
 * f64 is left to the host's loops.
 */
#include "backends/cpu/attention.h"

typedef struct backward {
    const tn_desc *dq, *dk, *dv, *dy, *y, *lse, *q, *k, *v;
    const tn__attention *args;
    int64_t width, queries, keys; /* the head's size rounded up to NR; Tq and Tk up to SIDE */
} backward;

/* A thread's buffers. `_rows`: row after row, a left operand; `_panels`: a right operand. */
typedef struct buffers {
    /* of the head, queries long */
    float *q_rows, *q_panels, *dy_rows, *dy_panels, *dq, *lse, *delta;
    float *k_rows, *k_panels, *k_turned, *v_turned, *dk, *dv; /* of the group, keys long */
    float *p, *ds;                                            /* one tile */
    bool *odd_q, *odd_dy, *odd_k;                             /* tiles that hold NaN or infinity */
} buffers;

static size_t buffer_floats(const backward *f) {
    int64_t q = f->queries * f->width, k = f->keys * f->width;
    return (size_t)(5 * q + 6 * k + 2 * f->queries + 2 * SIDE * TILE_LD +
                    (2 * f->queries + f->keys) / SIDE + 16);
}
static buffers lay_out(const backward *f, float *memory) {
    int64_t q = f->queries * f->width, k = f->keys * f->width;
    buffers w;
    float **of_q[] = {&w.q_rows, &w.q_panels, &w.dy_rows, &w.dy_panels, &w.dq},
          **of_k[] = {&w.k_rows, &w.k_panels, &w.k_turned, &w.v_turned, &w.dk, &w.dv};
    for (int i = 0; i < 5; i++, memory += q) {
        *of_q[i] = memory;
    }
    for (int i = 0; i < 6; i++, memory += k) {
        *of_k[i] = memory;
    }
    w.p = memory;
    w.ds = w.p + SIDE * TILE_LD;
    w.lse = w.ds + SIDE * TILE_LD;
    w.delta = w.lse + f->queries;
    w.odd_q = (bool *)(w.delta + f->queries);
    w.odd_dy = w.odd_q + f->queries / SIDE;
    w.odd_k = w.odd_dy + f->queries / SIDE;
    return w;
}

static void load_group(const backward *f, const buffers *w, int64_t b, int64_t g) {
    int64_t width = f->width, keys = f->k->size[2];
    for (int64_t j = 0; j < keys; j += SIDE) {
        int64_t n = min_of(SIDE, keys - j), here = j * width;
        read_rows(w->k_rows + here, width, f->v, b, g, j, n, 1);
        pack_turned(w->v_turned + here, w->k_rows + here, width, n, width);
        w->odd_k[j / SIDE] = !read_rows(w->k_rows + here, width, f->k, b, g, j, n, 1);
        pack_turned(w->k_turned + here, w->k_rows + here, width, n, width);
        pack_rows(w->k_panels + here, SIDE, w->k_rows + here, n, width);
    }
    memset(w->dk, 0, (size_t)(f->keys * width) * sizeof(float));
    memset(w->dv, 0, (size_t)(f->keys * width) * sizeof(float));
}

static void load_head(const backward *f, const buffers *w, int64_t b, int64_t h) {
    int64_t width = f->width, queries = f->q->size[2];
    const tn_desc *lse = f->lse;
    for (int64_t i = 0; i < queries; i += SIDE) {
        int64_t m = min_of(SIDE, queries - i), here = i * width;
        w->odd_dy[i / SIDE] = !read_rows(w->dy_rows + here, width, f->dy, b, h, i, m, 1);
        pack_rows(w->dy_panels + here, SIDE, w->dy_rows + here, m, width);
        read_rows(w->q_rows + here, width, f->y, b, h, i, m, 1); /* y is only needed for delta */
        for (int64_t r = 0; r < m; r++) {
            w->delta[i + r] =
                (float)row_dot(w->dy_rows + here + r * width, w->q_rows + here + r * width, width);
            w->lse[i + r] = *(const float *)desc_at(lse, b * lse->stride[0] + h * lse->stride[1] +
                                                             (i + r) * lse->stride[2]);
        }
        w->odd_q[i / SIDE] =
            !read_rows(w->q_rows + here, width, f->q, b, h, i, m, (float)f->args->scale);
        pack_rows(w->q_panels + here, SIDE, w->q_rows + here, m, width);
    }
    memset(w->dq, 0, (size_t)(f->queries * width) * sizeof(float));
}

/* A pair of tiles: queries [i0, i0 + m), keys [j0, j0 + n). */
typedef struct pair {
    const sight *s;
    int64_t i0, m, j0, n;
    bool whole; /* all keys are visible */
} pair;

/* Scores and dy v^T of row i become p and ds; the first `own` columns were computed, all n are
 * written. */
static void soften_pair(const buffers *w, const pair *t, int64_t i, int64_t own) {
    const sight *s = t->s;
    float *p = w->p + i * TILE_LD, *ds = w->ds + i * TILE_LD;
    float lse = w->lse[t->i0 + i], delta = w->delta[t->i0 + i];
    int64_t seen = own;
    if (!t->whole && s->causal) { seen = max_of(0, min_of(own, t->i0 + i + s->shift - t->j0 + 1)); }
    const float low = exp_low;
#pragma omp simd
    for (int64_t j = 0; j < seen; j++) {
        float e = exp_down(p[j] - lse, low);
        p[j] = e;
        ds[j] = e * (ds[j] - delta);
    }
    for (int64_t j = seen; j < t->n; j++) {
        p[j] = 0;
        ds[j] = 0;
    }
    for (int64_t j = 0; j < seen && s->mask; j++) {
        if (!key_visible(s, t->i0 + i, t->j0 + j)) {
            p[j] = 0;
            ds[j] = 0;
        }
    }
}

/* p and ds of rows [r, r + h), and their part of dq. */
static void query_strip(const backward *f, const buffers *w, const pair *t, int64_t r, int64_t h) {
    int64_t width = f->width, here = (t->i0 + r) * width, there = t->j0 * width;
    int64_t own = max_of(0, min_of(t->n, keys_for(t->s, t->i0 + r, h, f->k->size[2]) - t->j0));
    float *p = w->p + r * TILE_LD, *ds = w->ds + r * TILE_LD;
    tile_product(h, own, width, w->q_rows + here, width, w->k_turned + there, width, p, TILE_LD,
                 false);
    tile_product(h, own, width, w->dy_rows + here, width, w->v_turned + there, width, ds, TILE_LD,
                 false);
    for (int64_t i = r; i < r + h; i++) {
        soften_pair(w, t, i, own);
    }
    if (t->whole || !w->odd_k[t->j0 / SIDE]) {
        tile_product(h, width, own, ds, TILE_LD, w->k_panels + there, SIDE, w->dq + here, width,
                     true);
    } else {
        visible_product(t->s, t->i0 + r, h, t->j0, t->n, ds, TILE_LD, 1, w->k_rows + there, width,
                        w->dq + here, false);
    }
}

/* The part of dv and dk of keys [c, c + h), from the queries that see any of them. */
static void key_strip(const backward *f, const buffers *w, const pair *t, int64_t c, int64_t h) {
    int64_t width = f->width, here = (t->j0 + c) * width, there = t->i0 * width, from = 0;
    if (t->s->causal) { from = min_of(t->m, max_of(0, t->j0 + c - t->s->shift - t->i0)); }
    int64_t m = t->m - from, corner = from * TILE_LD + c;
    tile_product_turned(h, width, m, w->p + corner, TILE_LD, w->dy_panels + there + from * NR, SIDE,
                        w->dv + here, width, true);
    tile_product_turned(h, width, m, w->ds + corner, TILE_LD, w->q_panels + there + from * NR, SIDE,
                        w->dk + here, width, true);
}

static void run_pair(const backward *f, const buffers *w, const pair *t) {
    int64_t width = f->width, strip = t->whole || t->s->mask ? SIDE : STRIP;
    for (int64_t r = 0; r < t->m; r += strip) {
        query_strip(f, w, t, r, min_of(strip, t->m - r));
    }
    if (t->whole || !(w->odd_dy[t->i0 / SIDE] || w->odd_q[t->i0 / SIDE])) {
        for (int64_t c = 0; c < t->n; c += strip) {
            key_strip(f, w, t, c, min_of(strip, t->n - c));
        }
        return;
    }
    float *dv = w->dv + t->j0 * width, *dk = w->dk + t->j0 * width;
    visible_product(t->s, t->i0, t->m, t->j0, t->n, w->p, TILE_LD, 1, w->dy_rows + t->i0 * width,
                    width, dv, true);
    visible_product(t->s, t->i0, t->m, t->j0, t->n, w->ds, TILE_LD, 1, w->q_rows + t->i0 * width,
                    width, dk, true);
}

/* One head of a gradient, times `scale`. */
static void store_head(const tn_desc *d, int64_t b, int64_t h, float *rows, int64_t width,
                       float scale) {
    int64_t apart = d->stride[2] * (int64_t)size_of(d->dtype);
    char *to = desc_at(d, b * d->stride[0] + h * d->stride[1]);
    for (int64_t i = 0; i < d->size[2]; i++, to += apart) {
        float *row = rows + i * width;
        fetch_row(d, to + ROWS_AHEAD * apart);
        for (int64_t j = 0; j < d->size[3]; j++) {
            row[j] *= scale;
        }
        store_f32(to, d->dtype, d->stride[3], row, d->size[3]);
    }
}

static void run_group(const backward *f, const buffers *w, int64_t b, int64_t g) {
    int64_t queries = f->q->size[2], keys = f->k->size[2], heads = f->q->size[1] / f->k->size[1];
    load_group(f, w, b, g);
    for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
        sight s = {f->args->causal, keys - queries, f->args->mask, b, h};
        load_head(f, w, b, h);
        for (int64_t j = 0; j < keys; j += SIDE) {
            for (int64_t i = 0; i < queries; i += SIDE) {
                int64_t m = min_of(SIDE, queries - i), n = min_of(SIDE, keys - j);
                if (keys_for(&s, i, m, keys) > j) {
                    pair t = {&s, i, m, j, n, all_visible(&s, i, j, n)};
                    run_pair(f, w, &t);
                }
            }
        }
        store_head(f->dq, b, h, w->dq, f->width, (float)f->args->scale);
    }
    store_head(f->dk, b, g, w->dk, f->width, 1);
    store_head(f->dv, b, g, w->dv, f->width, 1);
}

tn_status TN_CPU(attention_backward)(const tn_op_back *b) {
    tn_desc seen;
    const tn__attention a = tn__attention_back_of(b, &seen);
    const tn_desc *q = a.q, *k = a.k;
    backward f = {a.dq,
                  a.dk,
                  a.dv,
                  a.dy,
                  a.y,
                  a.lse,
                  q,
                  k,
                  a.v,
                  &a,
                  round_up(q->size[3], NR),
                  round_up(max_of(1, q->size[2]), SIDE),
                  round_up(max_of(1, k->size[2]), SIDE)};
    if (!is_f32_like(q->dtype) || k->size[1] == 0 || q->size[3] == 0) { return TN_EUNSUPPORTED; }
    int64_t tasks = k->size[0] * k->size[1];
    if (tasks == 0) { return TN_OK; }
    int threads = team_size(tasks, q->size[0] * q->size[1] * q->size[2] * (k->size[2] + 1) *
                                       (q->size[3] / 4 + 1));
    size_t each = (buffer_floats(&f) + 63) / 64 * 64;
    TN__SCRATCH(float, memory, b->ctx, (each * (size_t)threads));
    if (!memory) { return TN_ENOMEM; }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        buffers w = lay_out(&f, memory + (size_t)(threads > 1 ? omp_get_thread_num() : 0) * each);
        run_group(&f, &w, task / k->size[1], task % k->size[1]);
    }
    return TN_OK;
}
