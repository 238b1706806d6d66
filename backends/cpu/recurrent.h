/* Recurrent cells over time in f32 (tn_recurrent in tern/sys/backend.h; ref/recurrent.c has the
 * formulas): what forward and backward have in common.
 *
 * A step is a product of few rows with the weights, which do not change, and then the cell. So the
 * weights are packed once into panels, each with the columns that one group of units needs, and a
 * task multiplies a tile of rows by a panel and computes the cell while the sums are in the L1
 * cache. A thread has the same panels at each step: they stay in its cache. Threads synchronise
 * once per step.
 *
 * Tiles and panels depend on the shape alone, and an element is one chain of multiply-adds: the
 * bits are the same for any number of threads.
 */
#ifndef TERN_BACKENDS_CPU_RECURRENT_H
#define TERN_BACKENDS_CPU_RECURRENT_H

#define T float

#include "backends/cpu/rows.h"
#include "backends/cpu/vectors.h"
#include "backends/recurrent.h"

/* One pass over the times. */
typedef struct scan {
    const tn_recurrent *r;
    int64_t times, rows, units; /* T, B, H */
    int gates, kept;            /* G, K */
    int wide;                   /* vectors of columns in a panel */
    int64_t depth;              /* of the product */
    int64_t panels, tiles;      /* of columns, of rows */
    float *packed;              /* (panels, wide, depth, VL) */
    float *gate, *h_before, *c_before;
    int threads;
} scan;

/* Rows of a tile, so that `wide` sums of each stay in registers. */
INLINE int tile_height(int wide) {
    int fits = (VBYTES == 64 ? 24 : 12) / wide;
    return fits < MOST_ROWS ? fits : MOST_ROWS;
}

static inline scan scan_of(const tn_recurrent *r, int wide, int64_t depth, int64_t panels) {
    const tn_desc *h = r->h_before;
    scan s = {.r = r,
              .times = h->size[0],
              .rows = h->size[1],
              .units = h->size[2],
              .gates = tn__cell_gates(r->cell),
              .kept = tn__cell_kept(r->cell),
              .wide = wide,
              .depth = depth,
              .panels = panels,
              .gate = r->gates->data,
              .h_before = h->data,
              .c_before = r->c_before ? r->c_before->data : NULL};
    s.tiles = div_up(s.rows, tile_height(wide));
    s.threads = team_size(s.panels * s.tiles, s.rows * s.gates * s.units * s.units / 16);
    return s;
}

static inline size_t packed_floats(const scan *s) {
    return (size_t)(s->panels * s->wide * s->depth * VL);
}

/* The first task of thread `me`: tasks of one panel are next to each other. */
static inline int64_t first_task(const scan *s, int threads, int me) {
    return s->panels * s->tiles * me / threads;
}

/* A state or its gradient: n elements, 0 without a source. */
static inline void set_state(float *to, const tn_desc *from, int64_t n) {
    if (from) {
        memcpy(to, from->data, (size_t)n * sizeof(float));
    } else {
        memset(to, 0, (size_t)n * sizeof(float));
    }
}

static inline void team_meet(int threads) {
    if (threads > 1) {
#pragma omp barrier
    }
}

/* sums (rows, wide, VL) = start (wide, VL) + a panel's product with rows of a, lda apart. */
INLINE void panel_product(const int rows, const int wide, int64_t depth, const float *restrict a,
                          int64_t lda, const float *restrict panel, const float *restrict start,
                          float *restrict sums) {
    sum_tile acc;
    load_sums(acc, rows, wide, start, 0);
    add_product(acc, rows, wide, depth, a, lda, 1, panel, VL, depth * VL);
    store_sums(acc, rows, wide, sums, wide * VL);
}

/* The same with a height that is not a compile-time constant, up to tile_height(wide). */
INLINE void tile_product(int rows, const int wide, int64_t depth, const float *a, int64_t lda,
                         const float *panel, const float *start, float *sums) {
#define TILE_CASE(n)                                                                               \
    case n:                                                                                        \
        if (n <= tile_height(wide)) { panel_product(n, wide, depth, a, lda, panel, start, sums); } \
        break;
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
        TILE_CASE(12)
    default:
        break;
    }
#undef TILE_CASE
}

INLINE float cell_sigmoid(float x, float low, float high) {
    return 1 / (1 + exp_between(-x, low, high));
}

#endif
