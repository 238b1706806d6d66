/* Reductions with many results of few elements each: a pooling window, a channel's 7 x 7 places, a
 * row of 10 classes. Handling one row at a time would cost more than its elements.
 *
 * The innermost dimensions of x are taken as a row of blocks, (blocks, run, width), without gaps:
 * `run` is reduced, `width` and `blocks` are kept, and either may be 1. If reduced rows follow one
 * another, and groups of such rows do too, as in pooling, a group is folded as a run of wide
 * blocks. Other reduced dimensions are folded first, whole rows onto whole rows, into a tile; then
 * the blocks of the tile are folded in halves, neighbour onto neighbour, which needs only a shuffle
 * however short a run is. So a sum's error grows with the logarithm of the run.
 *
 * Against reduce.c's rows and columns, for 64 MB on one thread of a Xeon with AVX-512: rows of 2, 3
 * and 10 take half of the time, rows of 64 and 7 x 7 places a third, windows of 2 x 2 and runs of 4
 * between columns a quarter.
 */
#include "backends/cpu/reduce.h"
#include "backends/axes.h"
#include "backends/cpu/convert.h"

enum { ELEMENTS = 4096, LONGEST = 1024, LONGEST_RUN = 256, MOST_ROWS = 32, WIDE = 16 };

typedef struct short_runs {
    tn_reduction f;
    const tn_desc *y, *x;
    tn__axes stays, goes; /* dimensions kept and reduced, without the blocks */
    int64_t blocks, run, width;
    int64_t rows, per_row; /* a block is reduced rows, each of per_row runs */
    int64_t block, made;   /* elements of a block, and of its results */
    int64_t piece, pieces; /* blocks of an item, and items of a row of blocks */
    int64_t batch;         /* items in a tile */
    float count;           /* elements in one result */
} short_runs;

/* ---- Folding: f is a constant wherever these are used ---------------------------------------- */

/* (pairs, 2, width) -> (pairs, width) */
INLINE void fold_pairs(tn_reduction f, float *restrict out, const float *restrict in, int64_t pairs,
                       int64_t width) {
    if (width == 1) {
#pragma omp simd
        for (int64_t i = 0; i < pairs; i++) {
            out[i] = fold_two(f, in[2 * i], in[2 * i + 1]);
        }
        return;
    }
    for (int64_t p = 0; p < pairs; p++) {
        const float *a = in + 2 * p * width, *b = a + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            out[p * width + i] = fold_two(f, a[i], b[i]);
        }
    }
}

/* The same with a compile-time width for common ones. */
INLINE void fold_halves(tn_reduction f, float *restrict out, const float *restrict in,
                        int64_t pairs, int64_t width) {
#define KNOWN(w)                          \
    case w:                               \
        fold_pairs(f, out, in, pairs, w); \
        break
    switch (width) {
        KNOWN(1);
        KNOWN(2);
        KNOWN(4);
        KNOWN(8);
        KNOWN(16);
        KNOWN(32);
    default:
        fold_pairs(f, out, in, pairs, width);
        break;
    }
#undef KNOWN
}

/* (blocks, run) -> (blocks, WIDE), for a run of at least WIDE */
INLINE void fold_wide(tn_reduction f, float *restrict out, const float *restrict in, int64_t blocks,
                      int64_t run) {
    int64_t whole = run / WIDE * WIDE;
    for (int64_t b = 0; b < blocks; b++, in += run, out += WIDE) {
        float lane[WIDE];
#pragma omp simd
        for (int l = 0; l < WIDE; l++) {
            lane[l] = in[l];
        }
        for (int64_t k = WIDE; k < whole; k += WIDE) {
#pragma omp simd
            for (int l = 0; l < WIDE; l++) {
                lane[l] = fold_two(f, lane[l], in[k + l]);
            }
        }
        for (int64_t l = 0; l < run - whole; l++) {
            lane[l] = fold_two(f, lane[l], in[whole + l]);
        }
#pragma omp simd
        for (int l = 0; l < WIDE; l++) {
            out[l] = lane[l];
        }
    }
}

/* (blocks, 3) -> (blocks) */
INLINE void fold_threes(tn_reduction f, float *restrict out, const float *restrict in,
                        int64_t blocks) {
#pragma omp simd
    for (int64_t b = 0; b < blocks; b++) {
        out[b] = fold_two(f, fold_two(f, in[3 * b], in[3 * b + 1]), in[3 * b + 2]);
    }
}

/* (blocks, run) -> (blocks, half), for half < run < 2 half: what is beyond `half` is folded onto
 * the beginning. Vectors reach into the next block, so the last block is handled separately. */
INLINE void fold_beyond(tn_reduction f, float *restrict out, const float *restrict in,
                        int64_t blocks, int64_t run, int half) {
    int64_t beyond = run - half;
    for (int64_t b = 0; b < blocks - 1; b++, in += run, out += half) {
#pragma omp simd
        for (int l = 0; l < half; l++) {
            float both = fold_two(f, in[l], in[half + l]);
            out[l] = l < beyond ? both : in[l];
        }
    }
    for (int l = 0; l < half; l++) {
        out[l] = l < beyond ? fold_two(f, in[l], in[half + l]) : in[l];
    }
}

/* One step of fold_tile for an odd run; returns the new run. The other steps halve it. */
INLINE int64_t fold_odd(tn_reduction f, float *restrict out, const float *restrict in,
                        int64_t blocks, int64_t run, int64_t width) {
    if (width == 1 && run == 3) {
        fold_threes(f, out, in, blocks);
        return 1;
    }
    if (width == 1 && run < 8) {
        fold_beyond(f, out, in, blocks, run, 4);
        return 4;
    }
    if (width == 1) {
        fold_beyond(f, out, in, blocks, run, 8);
        return 8;
    }
    for (int64_t b = 0; b < blocks; b++, in += run * width, out += width) {
        fold_pairs(f, out, in, 1, width);
        for (int64_t k = 2; k < run; k++) {
            fold_onto(f, out, in + k * width, width);
        }
    }
    return 1;
}

/* Folds a tile to its results; returns where they are: in one of the two buffers, or `in` for a run
 * of 1. */
INLINE const float *fold_tile(tn_reduction f, float *buffer, float *spare, const float *in,
                              int64_t blocks, int64_t run, int64_t width) {
    if (width == 1 && run > WIDE) {
        fold_wide(f, buffer, in, blocks, run);
        run = WIDE;
        in = buffer;
    }
    while (run > 1) {
        float *out = in == buffer ? spare : buffer;
        if (run % 2) {
            run = fold_odd(f, out, in, blocks, run, width);
        } else if (width == 1) { /* neighbours, however long the run is */
            fold_halves(f, out, in, blocks * run / 2, 1);
            run /= 2;
        } else {
            fold_halves(f, out, in, blocks, run / 2 * width);
            run /= 2;
        }
        in = out;
    }
    return in;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Where item i of x and y is, and how many blocks it has. */
static int64_t item_at(const short_runs *r, int64_t i, int64_t *x, int64_t *y) {
    int64_t from = i % r->pieces * r->piece;
    *x = from * r->block;
    *y = from * r->made;
    tn__axes_at(&r->stays, i / r->pieces, x, y);
    return min_of(r->piece, r->blocks - from);
}

/* Folds all rows of one item into tile[n]; returns x in place if there is only one f32 row. */
INLINE const float *fold_item(const short_runs *r, tn_reduction f, float *tile, float *buffer,
                              int64_t x, int64_t n) {
    tn_dtype dtype = r->x->dtype;
    if (r->goes.total == 1) { return row_f32(tile, desc_at(r->x, x), dtype, 1, n); }
    load_f32(tile, desc_at(r->x, x), dtype, 1, n);
    for (int64_t i = 1; i < r->goes.total; i++) {
        int64_t row = x, unused = 0;
        tn__axes_at(&r->goes, i, &row, &unused);
        fold_onto(f, tile, row_f32(buffer, desc_at(r->x, row), dtype, 1, n), n);
    }
    return tile;
}

static void store_item(const short_runs *r, int64_t y, const float *result, int64_t n) {
    if (r->f != TN_MEAN) {
        store_f32(desc_at(r->y, y), r->y->dtype, 1, result, n);
        return;
    }
    float mean[ELEMENTS];
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        mean[j] = result[j] / r->count;
    }
    store_f32(desc_at(r->y, y), r->y->dtype, 1, mean, n);
}

/* Items [first, last), which are few enough for a tile. */
INLINE void fold_items(const short_runs *r, tn_reduction f, int64_t first, int64_t last) {
    float tile[ELEMENTS], buffer[ELEMENTS], spare[ELEMENTS];
    int64_t x, y, blocks = 0;
    const float *all = tile;
    for (int64_t i = first; i < last; i++) {
        int64_t count = item_at(r, i, &x, &y);
        float *to = tile + blocks * r->block;
        const float *item = fold_item(r, f, to, buffer, x, count * r->block);
        if (last - first == 1) {
            all = item;
        } else if (item != to) {
            memcpy(to, item, (size_t)(count * r->block) * sizeof *item);
        }
        blocks += count;
    }
    if (r->rows > 1) { all = fold_tile(f, tile, spare, all, blocks, r->rows, r->block / r->rows); }
    const float *result = fold_tile(f, buffer, all == spare ? tile : spare, all,
                                    blocks * r->per_row, r->run, r->width);
    for (int64_t i = first; i < last; i++) {
        int64_t n = item_at(r, i, &x, &y) * r->made;
        store_item(r, y, result, n);
        result += n;
    }
}

static void fold_batch(const short_runs *r, int64_t first, int64_t last) {
    switch (r->f) {
    case TN_MAX:
        fold_items(r, TN_MAX, first, last);
        break;
    case TN_MIN:
        fold_items(r, TN_MIN, first, last);
        break;
    default:
        fold_items(r, TN_SUM, first, last);
        break;
    }
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* The product of the innermost dimensions in `order` that are reduced (`goes`) or kept, and follow
 * `dense` elements without a gap, in y as well. Removes them from the order. */
static int64_t take_dense(const short_runs *r, const int *order, int *n, bool goes, int64_t dense,
                          int64_t dense_y) {
    int64_t size = 1;
    for (; *n > 0; (*n)--) {
        int d = order[*n - 1];
        if ((r->y->size[d] == 1) != goes || r->x->stride[d] != dense * size ||
            (!goes && r->y->stride[d] != dense_y * size)) {
            break;
        }
        size *= r->x->size[d];
    }
    return size;
}

/* If a row of blocks is followed by reduced rows, and then by further such groups of rows, each
 * group becomes one block of several rows. */
static void take_rows(short_runs *r, const int *order, int *n) {
    int left = *n;
    int64_t row = r->blocks * r->block, made = r->blocks * r->width,
            rows = take_dense(r, order, &left, true, row, 0);
    if (rows == 1 || rows > MOST_ROWS || rows * row > LONGEST) { return; }
    *n = left;
    r->rows = rows;
    r->per_row = r->blocks;
    r->block = rows * row;
    r->made = made;
    r->blocks = take_dense(r, order, n, false, r->block, made);
}

/* False if there is no row of short blocks. */
static bool plan_runs(short_runs *r) {
    int order[TN_MAX_DIMS], n = tn__axes_order(r->x, order);
    r->width = take_dense(r, order, &n, false, 1, 1);
    r->run = take_dense(r, order, &n, true, r->width, 0);
    int64_t row = 0; /* a run of long rows is folded row onto row, not as a block */
    if (r->run <= MOST_ROWS && r->run * r->width > LONGEST && r->width >= LONGEST / 4) {
        row = r->width;
        r->width = 1;
    } else if (r->run == 1 || r->run > LONGEST_RUN || r->run * r->width > LONGEST) {
        return false;
    }
    r->rows = r->per_row = 1;
    r->block = row ? 1 : r->run * r->width;
    r->made = row ? 1 : r->width;
    r->blocks = row ? row : take_dense(r, order, &n, false, r->block, r->width);
    if (!row) { take_rows(r, order, &n); }
    r->stays.total = r->goes.total = 1;
    for (int k = 0; k < n; k++) {
        int d = order[k];
        bool goes = r->y->size[d] == 1;
        tn__axes_push(goes ? &r->goes : &r->stays, r->x->size[d], r->x->stride[d],
                      goes ? 0 : r->y->stride[d]);
    }
    if (row) {
        tn__axes_push(&r->goes, r->run, row, 0);
        r->run = 1;
    }
    r->piece = min_of(r->blocks, ELEMENTS / r->block);
    r->pieces = div_up(r->blocks, r->piece);
    r->batch = r->pieces > 1 ? 1 : ELEMENTS / (r->piece * r->block);
    return r->blocks * r->per_row * r->stays.total >= WIDE && r->goes.total <= MOST_ROWS;
}

tn_status TN_CPU(reduce_short)(tn_context *ctx, tn_reduction f, const tn_desc *y,
                               const tn_desc *x) {
    short_runs r = {.f = f, .y = y, .x = x};
    bool known = f == TN_SUM || f == TN_MEAN || f == TN_MAX || f == TN_MIN;
    if (!known || !is_f32_like(x->dtype) || y->dtype != x->dtype || !plan_runs(&r)) {
        return TN_EUNSUPPORTED;
    }
    r.count = (float)(r.run * r.rows * r.goes.total);
    int64_t items = r.stays.total * r.pieces, batches = div_up(items, r.batch);
    int threads = team_size(batches, count_of(x));
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t b = 0; b < batches; b++) {
        fold_batch(&r, b * r.batch, min_of((b + 1) * r.batch, items));
    }
    return TN_OK;
}
