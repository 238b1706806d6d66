/* Attention, forward: one pass over tiles of keys for each block of queries with a running maximum
 * and sum (Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682;
 * Dao et al. 2022, arXiv:2205.14135).
 *
 * A task is one head of one sequence, with all its queries or, where there are few heads, every
 * n-th block of them. It packs the head's keys and values once. A block's result does not depend on
 * the task that computes it. f64 is left to the host's loops.
 */
#include "backends/cpu/attention.h"

typedef struct forward {
    const tn_desc *y, *lse, *q, *k, *v;
    const tn__attention *args;
    int64_t width, keys; /* the head's size rounded up to NR, keys up to SIDE */
    int64_t parts;       /* tasks per head */
} forward;

/* A thread's buffers, one after the other. Keys are rows; queries are packed transposed and values
 * as they are, both in panels. A tile of scores has a row for each key: what belongs to a query is
 * in one lane, and its maximum and sum need no folding. */
typedef struct buffers {
    float *q, *rows, *k, *v, *y, *scores;
    bool *finite; /* of each tile of values */
} buffers;

static size_t buffer_floats(const forward *f) {
    int64_t tiles = f->keys / SIDE;
    return (size_t)(3 * SIDE * f->width + 2 * f->keys * f->width + SIDE * TILE_LD +
                    (tiles + 15) / 16 * 16);
}

static buffers lay_out(const forward *f, float *memory) {
    buffers b;
    b.q = memory;
    b.rows = b.q + SIDE * f->width;
    b.y = b.rows + SIDE * f->width;
    b.k = b.y + SIDE * f->width;
    b.v = b.k + f->keys * f->width;
    b.scores = b.v + f->keys * f->width;
    b.finite = (bool *)(b.scores + SIDE * TILE_LD);
    return b;
}

/* Keys and values [0, keys) of a group. */
static void load_group(const forward *f, const buffers *w, int64_t b, int64_t g, int64_t keys) {
    for (int64_t j = 0; j < keys; j += SIDE) {
        int64_t n = min_of(SIDE, keys - j);
        read_rows(w->k + j * f->width, f->width, f->k, b, g, j, n, 1);
        w->finite[j / SIDE] = read_rows(w->rows, f->width, f->v, b, g, j, n, 1);
        pack_rows(w->v + j * f->width, SIDE, w->rows, n, f->width);
    }
}

/* One block of queries, [i0, i0 + m), against a tile of keys, [j0, j0 + n). */
typedef struct pair {
    const sight *s;
    int64_t g, i0, m, j0, n;
} pair;

/* Of the tile's keys, those before the returned one are seen by some of the queries [i, i + h). */
static int64_t keys_seen(const pair *t, int64_t i, int64_t h) {
    return max_of(0, keys_for(t->s, t->i0 + i, h, t->j0 + t->n) - t->j0);
}
/* Queries of the block before this one do not see key j of the tile, as far as order goes. */
static int64_t first_query(const pair *t, int64_t j) {
    return t->s->causal ? max_of(0, t->j0 + j - t->s->shift - t->i0) : 0;
}

/* Scores of key after key, from the panel of the first query that sees it. Hidden ones are -inf. */
static void score_pair(const forward *f, const buffers *w, const pair *t) {
    const sight *s = t->s;
    int64_t width = f->width, strip = s->causal && !all_visible(s, t->i0, t->j0, t->n) ? MR : SIDE;
    for (int64_t j = 0; j < t->n; j += strip) {
        int64_t i = first_query(t, j) / NR * NR;
        if (i < t->m) {
            tile_product(min_of(strip, t->n - j), t->m - i, width, w->k + (t->j0 + j) * width,
                         width, w->q + i * width, width, w->scores + j * TILE_LD + i, TILE_LD,
                         false);
        }
    }
    for (int64_t j = 0; j < t->n; j++) {
        float *row = w->scores + j * TILE_LD;
        int64_t hidden = first_query(t, j);
        for (int64_t i = hidden / NR * NR; i < min_of(hidden, t->m); i++) {
            row[i] = -INFINITY;
        }
        for (int64_t i = hidden; i < t->m && s->mask; i++) {
            row[i] = key_visible(s, t->i0 + i, t->j0 + j) ? row[i] : -INFINITY;
        }
    }
}

/* What NR queries have accumulated: the largest score that is not NaN, and the sum of exponentials
 * relative to it. `keep`: what a larger maximum leaves of y. */
typedef struct lanes {
    float most[NR], sum[NR], keep[NR];
} lanes;

/* Scores of n keys become their exponentials; those of keys from n to `end` become 0. If nothing is
 * visible yet, every score is -inf, and a shift of 0 keeps it -inf. NaN propagates through the sum.
 */
static void soften_lanes(float *scores, int64_t n, int64_t end, lanes *q) {
    const float low = exp_low;
    float top[NR], total[NR] = {0};
    memcpy(top, q->most, sizeof top);
    for (int64_t j = 0; j < n; j++) {
#pragma omp simd
        for (int l = 0; l < NR; l++) {
            float v = scores[j * TILE_LD + l];
            top[l] = v > top[l] ? v : top[l];
        }
    }
    float shift[NR];
#pragma omp simd
    for (int l = 0; l < NR; l++) {
        shift[l] = top[l] == -INFINITY ? 0 : top[l];
        q->keep[l] = exp_down(q->most[l] - shift[l], low);
        q->most[l] = top[l];
    }
    for (int64_t j = 0; j < n; j++) {
#pragma omp simd
        for (int l = 0; l < NR; l++) {
            float e = exp_down(scores[j * TILE_LD + l] - shift[l], low);
            scores[j * TILE_LD + l] = e;
            total[l] += e;
        }
    }
#pragma omp simd
    for (int l = 0; l < NR; l++) {
        q->sum[l] = q->sum[l] * q->keep[l] + total[l];
    }
    for (int64_t j = n; j < end; j++) {
        memset(scores + j * TILE_LD, 0, NR * sizeof *scores);
    }
}

static void attend_pair(const forward *f, const buffers *w, const pair *t, lanes *q) {
    int64_t width = f->width;
    score_pair(f, w, t);
    for (int64_t i = 0; i < t->m; i += NR) {
        lanes *l = q + i / NR;
        soften_lanes(w->scores + i, keys_seen(t, i, min_of(NR, t->m - i)), t->n, l);
        for (int64_t r = 0; r < min_of(NR, t->m - i); r++) {
            float *y = w->y + (i + r) * width, keep = l->keep[r];
            for (int64_t d = 0; d < width && keep != 1; d++) {
                y[d] *= keep;
            }
        }
    }
    bool whole = all_visible(t->s, t->i0, t->j0, t->n);
    if (!whole && !w->finite[t->j0 / SIDE]) {
        read_rows(w->rows, width, f->v, t->s->b, t->g, t->j0, t->n, 1);
        visible_product(t->s, t->i0, t->m, t->j0, t->n, w->scores, 1, TILE_LD, w->rows, width, w->y,
                        false);
        return;
    }
    int64_t strip = whole ? SIDE : MR;
    for (int64_t i = 0; i < t->m; i += strip) {
        int64_t h = min_of(strip, t->m - i);
        tile_product_turned(h, width, keys_seen(t, i, h), w->scores + i, TILE_LD,
                            w->v + t->j0 * width, SIDE, w->y + i * width, width, true);
    }
}

/* The rows of y and lse of queries [i0, i0 + m). */
static void store_block(const forward *f, const buffers *w, const sight *s, int64_t i0, int64_t m,
                        const lanes *q) {
    const tn_desc *y = f->y, *lse = f->lse;
    for (int64_t i = 0; i < m; i++) {
        float most = q[i / NR].most[i % NR], sum = q[i / NR].sum[i % NR];
        bool none = most == -INFINITY && sum == 0;
        float *row = w->y + i * f->width, factor = none ? 0 : 1 / sum;
        for (int64_t d = 0; d < f->width; d++) {
            row[d] = none ? 0 : row[d] * factor;
        }
        int64_t at_y = s->b * y->stride[0] + s->h * y->stride[1] + (i0 + i) * y->stride[2];
        int64_t at_lse = s->b * lse->stride[0] + s->h * lse->stride[1] + (i0 + i) * lse->stride[2];
        store_f32(desc_at(y, at_y), y->dtype, y->stride[3], row, y->size[3]);
        *(float *)desc_at(lse, at_lse) = none ? -INFINITY : most + logf(sum);
    }
}

/* Queries [i0, i0 + m) against all keys that they see. */
static void attend_queries(const forward *f, const buffers *w, const sight *s, int64_t g,
                           int64_t i0, int64_t m) {
    lanes q[SIDE / NR];
    int64_t seen = keys_for(s, i0, m, f->k->size[2]);
    for (int64_t i = 0; i < SIDE; i++) {
        q[i / NR].most[i % NR] = -INFINITY;
        q[i / NR].sum[i % NR] = 0;
    }
    memset(w->y, 0, (size_t)(SIDE * f->width) * sizeof(float));
    read_rows(w->rows, f->width, f->q, s->b, s->h, i0, m, (float)f->args->scale);
    pack_turned(w->q, w->rows, f->width, m, f->width);
    for (int64_t j = 0; j < seen; j += SIDE) {
        pair t = {s, g, i0, m, j, min_of(SIDE, seen - j)};
        attend_pair(f, w, &t, q);
    }
    store_block(f, w, s, i0, m, q);
}

static void run_head(const forward *f, const buffers *w, int64_t b, int64_t h, int64_t part) {
    int64_t queries = f->q->size[2], keys = f->k->size[2], g = h / (f->q->size[1] / f->k->size[1]);
    sight s = {f->args->causal, keys - queries, f->args->mask, b, h};
    load_group(f, w, b, g, keys);
    for (int64_t i = part * SIDE; i < queries; i += f->parts * SIDE) {
        attend_queries(f, w, &s, g, i, min_of(SIDE, queries - i));
    }
}

static bool attention_handles(const tn__attention *a) {
    return is_f32_like(a->q->dtype) && a->k->size[1] > 0 && a->q->size[3] > 0;
}

static tn_status attention_forward(const tn_op_call *c) {
    tn_desc seen;
    const tn__attention a = tn__attention_of(c->x, c->y, c->args, &seen);
    const tn_desc *q = a.q, *k = a.k;
    if (!attention_handles(&a)) { return TN_EUNSUPPORTED; }
    int64_t heads = q->size[0] * q->size[1], blocks = div_up(q->size[2], SIDE);
    if (heads * blocks == 0) { return TN_OK; }
    if (TN_CPU(attention_is_few)(q, k)) { return TN_CPU(attention_few)(c->ctx, &a); }
    forward f = {
        a.y, a.lse, q, k, a.v, &a, round_up(q->size[3], NR), round_up(max_of(1, k->size[2]), SIDE),
        1};
    f.parts = min_of(blocks, div_up(16, heads));
    int64_t tasks = heads * f.parts;
    int threads = team_size(tasks, heads * q->size[2] * (k->size[2] + 1) * (q->size[3] / 8 + 1));
    size_t each = (buffer_floats(&f) + 63) / 64 * 64;
    TN__SCRATCH(float, memory, c->ctx, (each * (size_t)threads));
    if (!memory) { return TN_ENOMEM; }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        buffers w = lay_out(&f, memory + (size_t)(threads > 1 ? omp_get_thread_num() : 0) * each);
        int64_t head = task / f.parts;
        run_head(&f, &w, head / q->size[1], head % q->size[1], task % f.parts);
    }
    return TN_OK;
}

const tn_op_kernel TN_CPU(op_attention) = {attention_forward, TN_CPU(attention_backward)};
