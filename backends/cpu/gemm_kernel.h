/* The blocked matrix product in plain C; gemm_f32.c, gemm_f64.c, gemm_bf16.c and gemm_amx.c include
 * it with T set to the type of their sums.
 *
 * An `element` is what one multiply-add of a lane reads of an operand: a T, or PAIR elements of k
 * that the processor multiplies and adds at once (gemm_bf16.c). A panel is filled up with 0 to a
 * multiple of STEP elements of k. With TILES the including file has the packing, the sizes of
 * blocks and tile_full (gemm_amx.c).
 *
 * A and B may have any strides; bf16 and f16 operands are converted while they are packed. Both are
 * packed into panels that the micro kernel reads in order: A into MR rows, B into NR columns (two
 * vectors). Contiguous rows of A are read in place. An element of C is one chain of multiply-adds
 * over k in order, cut every `depth`; neither the cut nor the chain depends on where the element is
 * or which thread computes it. So threads may share the work in any way, and take tiles
 * dynamically: the bits are the same.
 *
 *     for each block of columns, for each cut of k:   pack B, then
 *         for each block of rows:                     pack A; barrier; tiles of C (and a barrier
 *                                                     before the next)
 */
#include "backends/cpu/convert.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/registers.h"
#include "backends/cpu/transpose.h"

#ifndef PAIR
#define PAIR 1
#define STEP 1
#define KERNEL_TARGET
#define MULTIPLY_ADD(sum, a, b) ((sum) + (a) * (b))
#define ROUND(sum) (sum)
typedef T element, rounded;
#endif

enum { VL = VBYTES / sizeof(T), NR = 2 * VL };

#ifndef TILES
#define BEGIN_THREAD
#define END_THREAD
enum {
    DEPTH = PAIR * 1536 / sizeof(T), /* of k: a B panel of DEPTH x NR fills the L1 cache */
    ROWS = MR * 176,                 /* the most of A and B that is packed at a time */
    COLS = NR * 192,
    TILE_ROWS = MR * 12, /* a task: an A block that stays in the L2 cache */
    TILE_COLS = NR * 16,
    NEAR = PAIR * 2048 / sizeof(T) /* A's rows are read in place when they are this close */
};
#endif

typedef T vec __attribute__((vector_size(VBYTES)));
typedef T vec_any __attribute__((vector_size(VBYTES), aligned(sizeof(T)), may_alias));
typedef element element_any __attribute__((aligned(sizeof(element) / PAIR), may_alias));

typedef struct work {
    const gemm_job *job;
    element *pack_a, *pack_b;
    T *sums; /* of a block of columns, until they are rounded; NULL: they are in C */
    int64_t depth, tile_rows, tile_cols;
    int threads;
    int64_t *next; /* [2], shared: the next tile to take, of even and odd passes */
} work;

/* MR rows of A for one tile: packed (lda 0), or in place, lda elements apart. */
typedef struct rows_of_a {
    const element_any *data;
    int64_t lda;
} rows_of_a;

#ifndef TILES
/* One operand seen by the packer: element (i, p) at data + i across + p along. */
#if PAIR == 1
static inline __attribute__((always_inline)) void pack_panel(T *restrict dst, const int width,
                                                             const gemm_side *s, int64_t across,
                                                             int64_t along, int64_t i0, int64_t n,
                                                             int64_t p0, int64_t k) {
    int64_t start = i0 * across + p0 * along;
    if (s->dtype != PLAIN) {
        CONVERT_PANEL
        return;
    }
    const T *restrict src = (const T *)s->data + start;
    if (n < width) {
        for (int64_t p = 0; p < k; p++) {
            for (int64_t i = 0; i < width; i++) {
                dst[p * width + i] = i < n ? src[i * across + p * along] : 0;
            }
        }
    } else if (across == 1) {
        for (int64_t p = 0; p < k; p++) {
            memcpy(dst + p * width, src + p * along, (size_t)width * sizeof(T));
        }
    } else if (along == 1) {
        transpose_panel(dst, width, src, across, k);
    } else {
        for (int64_t p = 0; p < k; p++) {
            for (int i = 0; i < width; i++) {
                dst[p * width + i] = src[i * across + p * along];
            }
        }
    }
}
#endif

static void pack_a(element *dst, const gemm_side *s, int64_t i0, int64_t n, int64_t p0, int64_t k) {
    pack_panel(dst, MR, s, s->row, s->col, i0, n, p0, k);
}
static void pack_b(element *dst, const gemm_side *s, int64_t j0, int64_t n, int64_t p0, int64_t k) {
    pack_panel(dst, NR, s, s->col, s->row, j0, n, p0, k);
}

/* acc (MR, NR) = A panel x B panel; element (i, p) of A at a[i across + p along]. */
KERNEL_TARGET static inline __attribute__((always_inline)) void micro_kernel(
    int64_t k, const element_any *restrict a, int64_t across, int64_t along,
    const element *restrict b, vec acc[MR][2]) {
    UNROLL
    for (int i = 0; i < MR; i++) {
        acc[i][0] = (vec){0};
        acc[i][1] = (vec){0};
    }
    for (int64_t p = 0; p < k; p++) {
        vec b0 = *(const vec_any *)b, b1 = *(const vec_any *)(b + VL);
        UNROLL
        for (int i = 0; i < MR; i++) {
            acc[i][0] = MULTIPLY_ADD(acc[i][0], a[i * across], b0);
            acc[i][1] = MULTIPLY_ADD(acc[i][1], a[i * across], b1);
        }
        a += along;
        b += NR;
    }
}

/* One full tile of C. */
KERNEL_TARGET static void tile_full(int64_t k, rows_of_a a, const element *b, T *c, int64_t ldc,
                                    T alpha, T beta, const T *d, int64_t ldd) {
    vec acc[MR][2];
    UNROLL
    for (int i = 0; i < MR; i++) { /* prefetch C while the product is computed */
        __builtin_prefetch(c + i * ldc, 1);
    }
    if (a.lda) {
        micro_kernel(k, a.data, a.lda, 1, b, acc);
    } else {
        micro_kernel(k, a.data, 1, MR, b, acc);
    }
    if (beta == 0) {
        UNROLL
        for (int i = 0; i < MR; i++) {
            *(vec_any *)(c + i * ldc) = alpha * acc[i][0];
            *(vec_any *)(c + i * ldc + VL) = alpha * acc[i][1];
        }
    } else {
        UNROLL
        for (int i = 0; i < MR; i++) {
            *(vec_any *)(c + i * ldc) = alpha * acc[i][0] + beta * *(const vec_any *)(d + i * ldd);
            *(vec_any *)(c + i * ldc + VL) =
                alpha * acc[i][1] + beta * *(const vec_any *)(d + i * ldd + VL);
        }
    }
}
#else
static void pack_a(element *dst, const gemm_side *s, int64_t i0, int64_t n, int64_t p0, int64_t k);
static void pack_b(element *dst, const gemm_side *s, int64_t j0, int64_t n, int64_t p0, int64_t k);
static void tile_full(int64_t k, rows_of_a a, const element *b, T *c, int64_t ldc, T alpha, T beta,
                      const T *d, int64_t ldd);
#endif

/* A tile at the edge, or one that is rounded: rows and cols of it are stored. */
static void tile_edge(int64_t k, rows_of_a a, const element *b, void *c, int64_t ldc, T alpha,
                      T beta, const T *d, int64_t ldd, int64_t rows, int64_t cols, bool rounds) {
    T out[MR * NR];
    tile_full(k, a, b, out, NR, alpha, 0, NULL, 0);
    for (int64_t i = 0; i < rows; i++) {
        T *sum = out + i * NR;
        for (int64_t j = 0; j < cols && beta != 0; j++) {
            sum[j] += beta * d[i * ldd + j];
        }
        for (int64_t j = 0; j < cols; j++) {
            if (rounds) {
                ((rounded *)c)[i * ldc + j] = ROUND(sum[j]);
            } else {
                ((T *)c)[i * ldc + j] = sum[j];
            }
        }
    }
}

typedef struct block {
    int64_t i0, m, j0, n, p0, k;
} block;

/* How many panels of the block's rows are read in place: all whole ones, or none. Rows that are
 * farther apart compete for the same cache sets. */
static int64_t panels_in_place(const gemm_side *a, const block *at) {
    bool near = a->dtype == PLAIN && a->col == 1 && a->row > 0 && a->row <= NEAR,
         whole = a->row % PAIR == 0 && at->k % STEP == 0;
    return near && whole ? at->m / MR : 0;
}

/* Elements of k in a packed panel. */
static inline int64_t steps_of(const block *at) {
    return div_up(at->k, STEP) * (STEP / PAIR);
}

/* Rows i to i + MR of the block; the first `in_place` panels are not packed. */
static inline rows_of_a a_rows(const work *w, const block *at, int64_t i, int64_t in_place) {
    const gemm_side *a = &w->job->a;
    if (i < in_place * MR) {
        int64_t step = a->row / PAIR;
        return (rows_of_a){(const element_any *)a->data + (at->i0 + i) * step + at->p0 / PAIR,
                           step};
    }
    return (rows_of_a){w->pack_a + (i - in_place * MR) * steps_of(at), 0};
}

/* Rows [r0, r1) and columns [c0, c1) of the packed block. */
static void tile_block(const work *w, const block *at, int64_t r0, int64_t r1, int64_t c0,
                       int64_t c1) {
    const gemm_job *job = w->job;
    bool first = at->p0 == 0, rounds = job->rounds && at->p0 + at->k == job->k;
    T alpha = (T)job->alpha, beta = first ? (T)job->beta : 1;
    int64_t ldc = w->sums ? at->n : job->ldc, ldd = first ? job->ldd : ldc, k = steps_of(at);
    T *c = w->sums ? w->sums + at->i0 * ldc : (T *)job->c + at->i0 * ldc + at->j0;
    rounded *out = (rounded *)job->c + at->i0 * job->ldc + at->j0;
    const T *d = first ? job->d : c;
    d = first && d ? d + at->i0 * ldd + at->j0 : d;
    int64_t in_place = panels_in_place(&job->a, at);
    for (int64_t j = c0; j < c1; j += NR) {
        const element *b = w->pack_b + j * k;
        for (int64_t i = r0; i < r1; i += MR) {
            rows_of_a a = a_rows(w, at, i, in_place);
            const T *add = beta != 0 ? d + i * ldd + j : NULL;
            int64_t rows = min_of(MR, at->m - i), cols = min_of(NR, at->n - j);
            if (rounds) {
                tile_edge(k, a, b, out + i * job->ldc + j, job->ldc, alpha, beta, add, ldd, rows,
                          cols, true);
            } else if (rows == MR && cols == NR) {
                tile_full(k, a, b, c + i * ldc + j, ldc, alpha, beta, add, ldd);
            } else {
                tile_edge(k, a, b, c + i * ldc + j, ldc, alpha, beta, add, ldd, rows, cols, false);
            }
        }
    }
}

static inline void team_meet(const work *w) {
    if (w->threads > 1) {
#pragma omp barrier
    }
}

/* One block of rows against one packed block of B; `pass` counts these. */
static void run_block(const work *w, const block *at, int64_t pass, int me) {
    const gemm_job *job = w->job;
    int64_t in_place = panels_in_place(&job->a, at), panels_a = div_up(at->m, MR) - in_place,
            panels_b = at->i0 == 0 ? div_up(at->n, NR) : 0, threads = w->threads, k = steps_of(at);
    if (pass > 0) { team_meet(w); /* now no thread reads the previous pass's packed blocks */ }
    if (me == 0) { w->next[(pass + 1) & 1] = 0; }
    for (int64_t p = panels_a * me / threads; p < panels_a * (me + 1) / threads; p++) {
        int64_t row = (in_place + p) * MR;
        pack_a(w->pack_a + p * MR * k, &job->a, at->i0 + row, min_of(MR, at->m - row), at->p0,
               at->k);
    }
    for (int64_t p = panels_b * me / threads; p < panels_b * (me + 1) / threads; p++) {
        pack_b(w->pack_b + p * NR * k, &job->b, at->j0 + p * NR, min_of(NR, at->n - p * NR), at->p0,
               at->k);
    }
    team_meet(w);
    int64_t down = div_up(at->m, w->tile_rows), right = div_up(at->n, w->tile_cols), tile;
    while ((tile = __atomic_fetch_add(&w->next[pass & 1], 1, __ATOMIC_RELAXED)) < down * right) {
        int64_t r = tile % down * w->tile_rows, c = tile / down * w->tile_cols;
        tile_block(w, at, r, min_of(r + w->tile_rows, at->m), c, min_of(c + w->tile_cols, at->n));
    }
}

static void run_all(const work *w, int me) {
    const gemm_job *job = w->job;
    int64_t pass = 0;
    BEGIN_THREAD
    for (int64_t j0 = 0; j0 < job->n; j0 += COLS) {
        for (int64_t p0 = 0; p0 < job->k; p0 += w->depth) {
            for (int64_t i0 = 0; i0 < job->m; i0 += ROWS) {
                block at = {i0, min_of(ROWS, job->m - i0),    j0, min_of(COLS, job->n - j0),
                            p0, min_of(w->depth, job->k - p0)};
                run_block(w, &at, pass++, me);
            }
        }
    }
    END_THREAD
}

/* k is 0: C = beta D. */
static void only_add(const gemm_job *job) {
    const T *d = job->d;
    for (int64_t i = 0; i < job->m; i++) {
        for (int64_t j = 0; j < job->n; j++) {
            T sum = job->beta == 0 ? 0 : (T)job->beta * d[i * job->ldd + j];
            if (job->rounds) {
                ((rounded *)job->c)[i * job->ldc + j] = ROUND(sum);
            } else {
                ((T *)job->c)[i * job->ldc + j] = sum;
            }
        }
    }
}

/* Tiles small enough that every thread gets several; the bits do not depend on it. */
static void cut_tiles(work *w) {
    const gemm_job *job = w->job;
    int64_t m = min_of(job->m, ROWS), n = min_of(job->n, COLS);
    w->tile_rows = min_of(TILE_ROWS, div_up(m, MR) * MR);
    w->tile_cols = min_of(TILE_COLS, div_up(n, NR) * NR);
    while (w->threads > 1 && div_up(m, w->tile_rows) * div_up(n, w->tile_cols) < 6 * w->threads) {
        if (w->tile_cols > 2 * NR) {
            w->tile_cols = div_up(w->tile_cols / 2, NR) * NR;
        } else if (w->tile_rows > MR) {
            w->tile_rows = div_up(w->tile_rows / 2, MR) * MR;
        } else {
            break;
        }
    }
}

tn_status GEMM(tn_context *ctx, const gemm_job *job) {
    if (job->m == 0 || job->n == 0) { return TN_OK; }
    if (job->k == 0) {
        only_add(job);
        return TN_OK;
    }
    int64_t next[2] = {0, 0};
    work w = {.job = job, .threads = job->threads, .next = next};
    int64_t cuts = div_up(job->k, DEPTH);
    int64_t steps = div_up(div_up(job->k, cuts), STEP) * (STEP / PAIR), cols = min_of(job->n, COLS);
    w.depth = steps * PAIR;
    size_t a = (size_t)(div_up(min_of(job->m, ROWS), MR) * MR * steps + 15) / 16 * 16,
           b = (size_t)(div_up(cols, NR) * NR * steps + 15) / 16 * 16,
           sums = job->rounds && w.depth < job->k ? (size_t)(job->m * cols) : 0;
    element near[4096] __attribute__((aligned(64)));
    size_t bytes = (a + b) * sizeof(element) + sums * sizeof(T);
    bool is_near = bytes <= sizeof near;
    TN__SCRATCH_IF(!is_near, char, memory, ctx, bytes);
    memory = is_near ? (char *)near : memory;
    if (!memory) { return TN_ENOMEM; }
    w.pack_b = (element *)memory;
    w.pack_a = w.pack_b + b;
    w.sums = sums ? (T *)(w.pack_a + a) : NULL;
    cut_tiles(&w);
    if (w.threads > 1) {
#pragma omp parallel num_threads(w.threads)
        {
            work mine = w;
            mine.threads = omp_get_num_threads(); /* may be fewer than asked for */
            run_all(&mine, omp_get_thread_num());
        }
    } else {
        run_all(&w, 0);
    }
    return TN_OK;
}
