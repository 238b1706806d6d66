/* The matrix product for bf16 on tiles (tiles.h): 32 x 32 sums in four tiles, two of A and two of B
 * beside them. B is packed in panels of pairs, which are what a tile wants. A's rows are read in
 * place; what is no whole panel, or has other strides, is packed tile by tile:
 *
 *     packed A: for each 32 of k: (32, 32), a row is 64 bytes
 *
 * An element's bits depend on its row of A and its column of B alone: a product and its transpose
 * have the same. So few rows are computed transposed, which reads weights in place.
 */
#include "backends/cpu/gemm.h"
#include "backends/cpu/pairs.h"
#include "backends/cpu/tiles.h"

typedef int32_t element;
typedef uint16_t rounded;

#define TILES
#define T float
#define PLAIN TN_BF16
#define PAIR 2
#define STEP TILE_K
#define GEMM tile_product
#define KERNEL_TARGET
#define ROUND(sum) to_bf16(sum)
#define BEGIN_THREAD tile_configure();
#define END_THREAD tile_release();

/* Of the sizes only the first is more than a guess: a panel of B has two thirds of 48 KB of L1. */
enum {
    DEPTH = 512,
    ROWS = 2048,
    COLS = 4096,
    TILE_ROWS = 128,
    TILE_COLS = 512,
    NEAR = INT32_MAX /* a tile is loaded once for 32 columns, mostly from the L2 cache */
};

static tn_status tile_product(tn_context *ctx, const gemm_job *job);

#include "backends/cpu/gemm_kernel.h"

enum { PAIRS = TILE_K / PAIR };

static void pack_a(element *dst, const gemm_side *s, int64_t i0, int64_t n, int64_t p0, int64_t k) {
    const uint16_t *src = (const uint16_t *)s->data + i0 * s->row + p0 * s->col;
    for (int64_t p = 0; p < k; p += TILE_K, dst += MR * PAIRS) {
        int64_t some = min_of(TILE_K, k - p);
        if (s->col == 1) {
            memset(dst, 0, MR * TILE_BYTES);
            for (int64_t i = 0; i < n; i++) {
                memcpy(dst + i * PAIRS, src + i * s->row + p, (size_t)some * sizeof(*src));
            }
            continue;
        }
        element turned[PAIRS * MR] __attribute__((aligned(64))) = {0};
        pair_width(turned, MR, src + p * s->col, s->row, s->col, n, some);
        transpose_panel((float *)dst, PAIRS, (const float *)turned, MR, MR);
    }
}

static void pack_b(element *dst, const gemm_side *s, int64_t j0, int64_t n, int64_t p0, int64_t k) {
    const uint16_t *src = (const uint16_t *)s->data + p0 * s->row + j0 * s->col;
    pair_width(dst, NR, src, s->col, s->row, n, k);
    int64_t rows = div_up(k, PAIR), whole = div_up(k, TILE_K) * PAIRS;
    memset(dst + rows * NR, 0, (size_t)((whole - rows) * NR) * sizeof(*dst));
}

/* c (32, 32) = A panel x B panel. */
static void four_tiles(int64_t k, rows_of_a a, const element *b, float *c, int64_t ldc) {
    const int64_t apart = a.lda ? a.lda : PAIRS, next = a.lda ? PAIRS : MR * PAIRS;
    const int64_t a_bytes = apart * (int64_t)sizeof(element), c_bytes = ldc * (int64_t)sizeof(*c);
    enum { B_BYTES = NR * sizeof(element), TO = TILE_SIDE };
    TILES_HERE
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t p = 0; p < k; p += PAIRS, a.data += next, b += PAIRS * NR) {
        tile_load(4, a.data, a_bytes);
        tile_load(6, b, B_BYTES);
        tile_multiply(0, 4, 6);
        tile_load(7, b + TO, B_BYTES);
        tile_multiply(1, 4, 7);
        tile_load(5, a.data + TO * apart, a_bytes);
        tile_multiply(2, 5, 6);
        tile_multiply(3, 5, 7);
    }
    tile_store(0, c, c_bytes);
    tile_store(1, c + TO, c_bytes);
    tile_store(2, c + TO * ldc, c_bytes);
    tile_store(3, c + TO * ldc + TO, c_bytes);
}

/* With something to add, as at an edge, so that both have the same bits. */
static void tile_full(int64_t k, rows_of_a a, const element *b, float *c, int64_t ldc, float alpha,
                      float beta, const float *d, int64_t ldd) {
    if (beta != 0) {
        tile_edge(k, a, b, c, ldc, alpha, beta, d, ldd, MR, NR, false);
        return;
    }
    four_tiles(k, a, b, c, ldc);
    for (int64_t i = 0; i < MR && alpha != 1; i++) {
        for (int64_t j = 0; j < NR; j++) {
            c[i * ldc + j] *= alpha;
        }
    }
}

/* By the transposed product, whose A is B's columns. */
static tn_status turned_product(tn_context *ctx, const gemm_job *job) {
    int64_t m = job->m, n = job->n;
    const float *d = job->d;
    TN__SCRATCH(float, sums, ctx, (m * n)); /* (n, m) */
    if (!sums) { return TN_ENOMEM; }
    gemm_job turned = *job;
    turned.m = n;
    turned.n = turned.ldc = turned.ldd = m;
    turned.a = (gemm_side){job->b.data, TN_BF16, job->b.col, job->b.row};
    turned.b = (gemm_side){job->a.data, TN_BF16, job->a.col, job->a.row};
    turned.c = sums;
    turned.d = sums;
    turned.rounds = false;
    for (int64_t j = 0; j < n && job->beta != 0; j++) {
        for (int64_t i = 0; i < m; i++) {
            sums[j * m + i] = d[i * job->ldd + j];
        }
    }
    tn_status status = tile_product(ctx, &turned);
    for (int64_t i = 0; i < m && status == TN_OK; i++) {
        for (int64_t j = 0; j < n; j++) {
            if (job->rounds) {
                ((rounded *)job->c)[i * job->ldc + j] = ROUND(sums[j * m + i]);
            } else {
                ((float *)job->c)[i * job->ldc + j] = sums[j * m + i];
            }
        }
    }
    return status;
}

tn_status TN_CPU(gemm_amx)(tn_context *ctx, const gemm_job *job) {
    bool few = job->m <= MR && job->n > MR && job->b.row == 1;
    return few ? turned_product(ctx, job) : tile_product(ctx, job);
}
