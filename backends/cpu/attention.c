/* Attention, forward: one pass over tiles of keys for each block of queries with a running maximum
 * and sum (Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682;
 * Dao et al. 2022, arXiv:2205.14135).
 *
 * A task is one head of one sequence, with all its queries or, where there are few heads, every
 * n-th block of them. It packs the head's keys and values once. A block's result does not depend on
 * the task that computes it. f64 is left to the host's loops.
 */
#include "backends/cpu/attention.h"

#include "backends/cpu/attention_few.h"

typedef struct forward {
    const tn_desc *y, *lse, *q, *k, *v;
    const tn__attention *args;
    int64_t width, keys; /* the head's size rounded up to NR, keys up to SIDE */
    int64_t parts;       /* tasks per head */
} forward;

/* A thread's buffers, one after the other. */
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

/* Keys [0, keys) of a group: each tile of keys transposed, each tile of values as it is. */
static void pack_head(const forward *f, const buffers *w, int64_t b, int64_t g, int64_t keys) {
    for (int64_t j = 0; j < keys; j += SIDE) {
        int64_t n = min_of(SIDE, f->k->size[2] - j);
        read_rows(w->rows, f->width, f->k, b, g, j, n, 1);
        pack_turned(w->k + j * f->width, w->rows, f->width, n, f->width);
        w->finite[j / SIDE] = read_rows(w->rows, f->width, f->v, b, g, j, n, 1);
        pack_rows(w->v + j * f->width, SIDE, w->rows, f->width, n, f->width);
    }
}

/* Masked scores become -inf. */
static void hide_scores(const sight *s, float *scores, int64_t i0, int64_t m, int64_t j0,
                        int64_t n) {
    for (int64_t i = 0; i < m; i++) {
        float *row = scores + i * TILE_LD;
        if (!s->mask) {
            for (int64_t j = max_of(0, i0 + i + s->shift - j0 + 1); j < n; j++) {
                row[j] = -INFINITY;
            }
            continue;
        }
        for (int64_t j = 0; j < n; j++) {
            row[j] = key_visible(s, i0 + i, j0 + j) ? row[j] : -INFINITY;
        }
    }
}

/* The largest of n scores that is not NaN; n is a multiple of NR. */
static float largest_score(const float *row, int64_t n) {
    float lane[NR], top = -INFINITY;
    for (int l = 0; l < NR; l++) {
        lane[l] = -INFINITY;
    }
    for (int64_t j = 0; j < n; j += NR) {
#pragma omp simd
        for (int l = 0; l < NR; l++) {
            float v = row[j + l];
            lane[l] = v > lane[l] ? v : lane[l];
        }
    }
    for (int l = 0; l < NR; l++) {
        top = lane[l] > top ? lane[l] : top;
    }
    return top;
}

/* Turns one row of scores into their exponentials relative to the running maximum; if that grows,
 * y's row and the sum are rescaled. */
static void soften_row(float *row, int64_t n, float *y, int64_t width, float *most, float *sum) {
    float top = largest_score(row, n), total = 0, keep = 1;
    top = top > *most ? top : *most;
    /* If nothing is visible yet, every score is -inf, and a shift of 0 keeps it -inf. NaN
     * propagates through the sum. */
    const float shift = top == -INFINITY ? 0 : top, low = exp_low;
    if (*most != top && *most != -INFINITY) { /* at first there is nothing to scale */
        keep = tn__expf(*most - shift);
    }
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < n; j++) {
        float e = exp_down(row[j] - shift, low);
        row[j] = e;
        total += e;
    }
    if (keep != 1) {
#pragma omp simd
        for (int64_t d = 0; d < width; d++) {
            y[d] *= keep;
        }
    }
    *sum = *sum * keep + total;
    *most = top;
}

/* One block of queries: [i0, i0 + m), with what its rows have accumulated so far. */
typedef struct block {
    const sight *s;
    int64_t g, i0, m;
    float most[SIDE], sum[SIDE];
} block;

/* Rows [r, r + h) of the block against keys [j0, j0 + n). */
static void attend_tile(const forward *f, const buffers *w, block *q, int64_t r, int64_t h,
                        int64_t j0, int64_t n) {
    int64_t width = f->width, i0 = q->i0 + r, padded = round_up(n, NR);
    float *scores = w->scores + r * TILE_LD, *y = w->y + r * width;
    tile_product(h, n, width, w->q + r * width, width, w->k + j0 * width, width, scores, TILE_LD,
                 false);
    bool whole = all_visible(q->s, i0, j0, n);
    if (!whole) {
        hide_scores(q->s, scores, i0, h, j0, n);
    }
    for (int64_t i = 0; i < h; i++) {
        float *row = scores + i * TILE_LD;
        for (int64_t j = n; j < padded; j++) {
            row[j] = -INFINITY;
        }
        soften_row(row, padded, y + i * width, width, &q->most[r + i], &q->sum[r + i]);
    }
    if (whole || w->finite[j0 / SIDE]) {
        tile_product(h, width, n, scores, TILE_LD, w->v + j0 * width, SIDE, y, width, true);
    } else {
        read_rows(w->rows, width, f->v, q->s->b, q->g, j0, n, 1);
        visible_product(q->s, i0, h, j0, n, scores, w->rows, width, y, false);
    }
}

/* The block's rows of y and lse. */
static void store_block(const forward *f, const buffers *w, const block *q) {
    const tn_desc *y = f->y, *lse = f->lse;
    const sight *s = q->s;
    for (int64_t i = 0; i < q->m; i++) {
        bool none = q->most[i] == -INFINITY && q->sum[i] == 0;
        float *row = w->y + i * f->width, factor = none ? 0 : 1 / q->sum[i];
        for (int64_t d = 0; d < f->width; d++) {
            row[d] = none ? 0 : row[d] * factor;
        }
        int64_t at_y = s->b * y->stride[0] + s->h * y->stride[1] + (q->i0 + i) * y->stride[2];
        int64_t at_lse =
            s->b * lse->stride[0] + s->h * lse->stride[1] + (q->i0 + i) * lse->stride[2];
        store_f32(desc_at(y, at_y), y->dtype, y->stride[3], row, y->size[3]);
        *(float *)desc_at(lse, at_lse) = none ? -INFINITY : q->most[i] + logf(q->sum[i]);
    }
}

/* Queries [i0, i0 + m) against all keys that they see. */
static void attend_queries(const forward *f, const buffers *w, const sight *s, int64_t g,
                           int64_t i0, int64_t m) {
    block q = {.s = s, .g = g, .i0 = i0, .m = m};
    int64_t keys = f->k->size[2], seen = keys_for(s, i0, m, keys);
    for (int64_t i = 0; i < m; i++) {
        q.most[i] = -INFINITY;
        q.sum[i] = 0;
    }
    memset(w->y, 0, (size_t)(SIDE * f->width) * sizeof(float));
    read_rows(w->q, f->width, f->q, s->b, s->h, i0, m, (float)f->args->scale);
    for (int64_t j0 = 0; j0 < seen; j0 += SIDE) {
        int64_t n = min_of(SIDE, seen - j0);
        int64_t strip = s->causal && !s->mask && !all_visible(s, i0, j0, n) ? STRIP : SIDE;
        for (int64_t r = 0; r < m; r += strip) {
            int64_t h = min_of(strip, m - r), own = min_of(n, keys_for(s, i0 + r, h, keys) - j0);
            if (own > 0) {
                attend_tile(f, w, &q, r, h, j0, own);
            }
        }
    }
    store_block(f, w, &q);
}

static void run_head(const forward *f, const buffers *w, int64_t b, int64_t h, int64_t part) {
    int64_t queries = f->q->size[2], keys = f->k->size[2], g = h / (f->q->size[1] / f->k->size[1]);
    sight s = {f->args->causal, keys - queries, f->args->mask, b, h};
    pack_head(f, w, b, g, keys);
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
    if (!attention_handles(&a)) {
        return TN_EUNSUPPORTED;
    }
    int64_t heads = q->size[0] * q->size[1], blocks = div_up(q->size[2], SIDE);
    if (heads * blocks == 0) {
        return TN_OK;
    }
    if (TN_CPU(attention_is_few)(q, k)) {
        return TN_CPU(attention_few)(c->ctx, &a);
    }
    forward f = {
        a.y, a.lse, q, k, a.v, &a, round_up(q->size[3], NR), round_up(max_of(1, k->size[2]), SIDE),
        1};
    f.parts = min_of(blocks, div_up(16, heads));
    int64_t tasks = heads * f.parts;
    int threads = team_size(tasks, heads * q->size[2] * (k->size[2] + 1) * (q->size[3] / 8 + 1));
    size_t each = (buffer_floats(&f) + 63) / 64 * 64,
           bytes = (size_t)threads * each * sizeof(float);
    float *memory = scratch_take(c->ctx, bytes);
    if (!memory) {
        return TN_ENOMEM;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        buffers w = lay_out(&f, memory + (size_t)(threads > 1 ? omp_get_thread_num() : 0) * each);
        int64_t head = task / f.parts;
        run_head(&f, &w, head / q->size[1], head % q->size[1], task % f.parts);
    }
    scratch_free(c->ctx, memory, bytes);
    return TN_OK;
}

const tn_op_kernel TN_CPU(op_attention) = {attention_forward, TN_CPU(attention_backward)};
