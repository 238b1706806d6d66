/* Attention of few queries over many keys: what a language model computes for its next token. Keys
 * and values are read once, in place; the tiles of attention.c would first pack all of them.
 *
 * A task is one head of keys with all queries that use it, of all heads in its group: for each tile
 * of SIDE keys the scores of all rows, then one softmax per row, then the weighted sums of values
 * tile by tile. Rows that are not contiguous f32 in a whole number of vectors pass through a
 * buffer.
 */
#include "backends/cpu/attention.h"

enum {
    FEW = 8,
    LINE = 64,   /* bytes of a cache line */
    AHEAD = 2048 /* elements of keys and values being prefetched */
};

typedef struct few {
    const tn_desc *y, *lse, *q, *k, *v;
    const tn__attention *args;
    int64_t width;   /* of a head, in whole vectors */
    int64_t keys;    /* in whole vectors */
    int64_t queries; /* of one head */
    int64_t group;   /* query heads per key head */
} few;

/* A thread's buffers. */
typedef struct buffers {
    float *q, *y;  /* (group queries, width) */
    float *scores; /* (group queries, keys) */
    float *tile;   /* (SIDE, width) */
} buffers;

bool TN_CPU(attention_is_few)(const tn_desc *q, const tn_desc *k) {
    return q->size[2] * (q->size[1] / max_of(1, k->size[1])) <= FEW;
}

static size_t buffer_floats(const few *f) {
    int64_t rows = f->group * f->queries;
    return (size_t)(2 * rows * f->width + rows * f->keys + SIDE * f->width);
}

static buffers lay_out(const few *f, float *memory) {
    int64_t rows = f->group * f->queries;
    buffers w = {.q = memory};
    w.y = w.q + rows * f->width;
    w.tile = w.y + rows * f->width;
    w.scores = w.tile + SIDE * f->width;
    return w;
}

/* n rows of a head from `first` on, *apart elements from each other: in place, or in `tile`. */
static const float *read_tile(const few *f, const tn_desc *x, float *tile, int64_t b, int64_t g,
                              int64_t first, int64_t n, int64_t *apart) {
    if (x->dtype == TN_F32 && x->stride[3] == 1 && x->size[3] == f->width) {
        *apart = x->stride[2];
        return (const float *)desc_at(x, b * x->stride[0] + g * x->stride[1] + first * *apart);
    }
    *apart = f->width;
    if (x->stride[3] != 1 || x->stride[2] != f->width || x->size[3] != f->width) {
        read_rows(tile, f->width, x, b, g, first, n, 1);
        return tile;
    }
    int64_t bytes = n * f->width * (int64_t)size_of(x->dtype);
    const char *from = desc_at(x, b * x->stride[0] + g * x->stride[1] + first * f->width);
    for (int64_t at = 0; at < bytes; at += LINE) { /* the next tile */
        __builtin_prefetch(from + bytes + at, 0, 2);
    }
    load_f32(tile, from, x->dtype, 1, n * f->width);
    return tile;
}

/* The sum of a vector's elements, first by quads, so that compilers add whole registers. */
INLINE float fold_vector(vec v) {
    union {
        vec v;
        quad q[VL / 4];
    } all = {.v = v};
    quad sum = all.q[0];
    UNROLL
    for (int i = 1; i < VL / 4; i++) {
        sum += all.q[i];
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* scores[j] = q k[j] for n keys. */
static void score_tile(float *restrict scores, const float *restrict q, const float *restrict k,
                       int64_t apart, int64_t n, int64_t width) {
    for (int64_t j = 0; j < n; j++, k += apart) {
        vec sum = {0};
        for (int64_t d = 0; d < width; d += VL) {
            __builtin_prefetch(k + d + AHEAD);
            sum += *(const vec_any *)(q + d) * *(const vec_any *)(k + d);
        }
        scores[j] = fold_vector(sum);
    }
}

/* y += p[j] v[j] over those of the n keys that are visible; `s` NULL: all are. */
static void add_tile(float *restrict y, const float *restrict p, const float *restrict v,
                     int64_t apart, int64_t n, int64_t width, const sight *s, int64_t i,
                     int64_t j0) {
    enum { BESIDE = 4 }; /* vectors of y in registers */
    for (int64_t d = 0; d < width; d += BESIDE * VL) {
        int64_t most = min_of(BESIDE, (width - d) / VL);
        vec sum[BESIDE];
        for (int64_t l = 0; l < most; l++) {
            sum[l] = *(const vec_any *)(y + d + l * VL);
        }
        for (int64_t j = 0; j < n; j++) {
            const float *row = v + j * apart + d;
            if (s && !key_visible(s, i, j0 + j)) { continue; /* 0 times NaN is NaN */ }
            if (most == BESIDE) {
                UNROLL
                for (int l = 0; l < BESIDE; l++) {
                    __builtin_prefetch(row + l * VL + AHEAD);
                    sum[l] += p[j] * *(const vec_any *)(row + l * VL);
                }
            } else {
                for (int64_t l = 0; l < most; l++) {
                    sum[l] += p[j] * *(const vec_any *)(row + l * VL);
                }
            }
        }
        for (int64_t l = 0; l < most; l++) {
            *(vec_any *)(y + d + l * VL) = sum[l];
        }
    }
}

/* Turns one row of scores into weights that sum to 1; returns log-sum-exp, -inf if nothing is
 * visible. */
static float soften_scores(float *scores, int64_t n) {
    float most = row_top(scores, n), shift = most == -INFINITY ? 0 : most;
    double sum = row_exp_sum(scores, scores, shift, n);
    if (sum == 0) { return -INFINITY; /* the weights are 0 already */ }
    float factor = (float)(1 / sum);
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        scores[j] *= factor;
    }
    return shift + (float)log(sum);
}

static sight sight_of(const few *f, int64_t b, int64_t h) {
    return (sight){f->args->causal, f->k->size[2] - f->queries, f->args->mask, b, h};
}

/* Scores of all rows; those that the mask hides are -inf. */
static void score_head(const few *f, const buffers *w, int64_t b, int64_t g) {
    int64_t keys = f->k->size[2], apart;
    for (int64_t r = 0; r < f->group * f->queries; r++) {
        int64_t h = g * f->group + r / f->queries;
        read_rows(w->q + r * f->width, f->width, f->q, b, h, r % f->queries, 1,
                  (float)f->args->scale);
    }
    for (int64_t j0 = 0; j0 < keys; j0 += SIDE) {
        int64_t n = min_of(SIDE, keys - j0);
        const float *k = read_tile(f, f->k, w->tile, b, g, j0, n, &apart);
        for (int64_t r = 0; r < f->group * f->queries; r++) {
            score_tile(w->scores + r * f->keys + j0, w->q + r * f->width, k, apart, n, f->width);
        }
    }
    for (int64_t r = 0; f->args->mask && r < f->group * f->queries; r++) {
        sight s = sight_of(f, b, g * f->group + r / f->queries);
        for (int64_t j = 0; j < keys; j++) {
            float *score = w->scores + r * f->keys + j;
            *score = key_visible(&s, r % f->queries, j) ? *score : -INFINITY;
        }
    }
}

static void store_row(const few *f, float *row, int64_t b, int64_t h, int64_t i, float lse) {
    const tn_desc *y = f->y, *l = f->lse;
    store_f32(desc_at(y, b * y->stride[0] + h * y->stride[1] + i * y->stride[2]), y->dtype,
              y->stride[3], row, y->size[3]);
    *(float *)desc_at(l, b * l->stride[0] + h * l->stride[1] + i * l->stride[2]) = lse;
}

/* One head of keys with all its queries. */
static void run_head(const few *f, const buffers *w, int64_t b, int64_t g) {
    int64_t keys = f->k->size[2], rows = f->group * f->queries, apart;
    float lse[FEW];
    score_head(f, w, b, g);
    for (int64_t r = 0; r < rows; r++) {
        sight s = sight_of(f, b, g * f->group + r / f->queries);
        lse[r] = soften_scores(w->scores + r * f->keys, keys_for(&s, r % f->queries, 1, keys));
    }
    memset(w->y, 0, (size_t)(rows * f->width) * sizeof(float));
    for (int64_t j0 = 0; j0 < keys; j0 += SIDE) {
        int64_t n = min_of(SIDE, keys - j0);
        const float *v = read_tile(f, f->v, w->tile, b, g, j0, n, &apart);
        for (int64_t r = 0; r < rows; r++) {
            sight s = sight_of(f, b, g * f->group + r / f->queries);
            int64_t i = r % f->queries, own = min_of(n, keys_for(&s, i, 1, keys) - j0);
            add_tile(w->y + r * f->width, w->scores + r * f->keys + j0, v, apart, own, f->width,
                     s.mask ? &s : NULL, i, j0);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        if (lse[r] == -INFINITY) { /* nothing visible: 0, even if values are not finite */
            memset(w->y + r * f->width, 0, (size_t)f->width * sizeof(float));
        }
        store_row(f, w->y + r * f->width, b, g * f->group + r / f->queries, r % f->queries, lse[r]);
    }
}

tn_status TN_CPU(attention_few)(tn_context *ctx, const tn__attention *a) {
    const tn_desc *q = a->q, *k = a->k;
    int64_t heads = k->size[1], tasks = q->size[0] * heads;
    few f = {.y = a->y,
             .lse = a->lse,
             .q = q,
             .k = k,
             .v = a->v,
             .args = a,
             .width = round_up(q->size[3], VL),
             .keys = round_up(max_of(1, k->size[2]), VL),
             .queries = q->size[2],
             .group = q->size[1] / heads};
    int threads = team_size(tasks, tasks * f.group * f.queries * f.keys * (f.width / 8 + 1));
    size_t each = (buffer_floats(&f) + 63) / 64 * 64;
    TN__SCRATCH(float, memory, ctx, (each * (size_t)threads));
    if (!memory) { return TN_ENOMEM; }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        buffers w = lay_out(&f, memory + (size_t)(threads > 1 ? omp_get_thread_num() : 0) * each);
        run_head(&f, &w, task / heads, task % heads);
    }
    return TN_OK;
}
