/* Products with few rows, as a language model needs for one token: each element of w is used so few
 * times that reading w takes all the time. The blocked product (gemm.h) would write a packed copy
 * of w first; here rows of w are read as they are, and widened in registers. More than
 * FEW_ROWS rows of x are multiplied in blocks; a strip of w is then read again from the cache.
 *
 * A vector of w becomes as many vectors of f32 as 32 bits hold elements (its phases). For bf16 and
 * f16, phase e has element e of each pair, widened by a shift or a mask; for i8, a quarter of the
 * vector. x is put into that order once:
 *
 *     packed x: for each block, for each vector of w, for each phase, for each row of x: a vector
 * of f32
 *
 * Where multiplying pairs of bf16 pays (gemm_bf16.c), nothing is widened: a vector of w has
 * one phase, and x is packed as bf16.
 *
 * An element of y is one chain of vector multiply-adds and a fold. It depends neither on the other
 * rows nor on the thread.
 */
#include "backends/cpu/few_rows.h"

#include "backends/cpu/convert.h"
#include "backends/cpu/registers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    VL = VBYTES / 4, /* f32 in a vector */
    GROUP = 4,       /* the most rows of w that are read at once */
    STRIP = 32,      /* rows of w per task; a multiple of GROUP */
    AHEAD = 12288    /* bytes of w being prefetched: what a core reads during one memory latency */
};

/* How many rows of w are read at once, with one register of sums for each pair of rows of x and w.
 * With one row of x only memory matters, and two streams are faster than four. */
#define GROUP_FOR(rows) \
    (REGISTERS == 32 ? (rows) == 2 || (rows) == 4 ? 4 : 2 : (rows) <= 2 ? 4 : (rows) <= 4 ? 2 : 1)

typedef float vec __attribute__((vector_size(VBYTES)));
typedef float quad __attribute__((vector_size(16)));
typedef int32_t word __attribute__((vector_size(VBYTES)));
typedef int32_t word_any __attribute__((vector_size(VBYTES), aligned(1), may_alias));

typedef union lanes {
    vec v;
    word w;
    quad q[VL / 4];
} lanes;

/* Vectors of f32 in a vector of w. */
INLINE int phases_of(tn_dtype dtype) {
    return dtype == TN_F32 ? 1 : dtype == TN_I8 ? 4 : 2;
}

INLINE vec float_bits(word w) {
    return (lanes){.w = w}.v;
}

/* VL signed bytes. With intrinsics, since gcc makes single moves of a loop or conversion. */
INLINE word widen_bytes(const char *from) {
#if !defined(__x86_64__)
    word wide = {0};
    for (int l = 0; l < VL; l++) {
        wide[l] = ((const int8_t *)from)[l];
    }
    return wide;
#elif TN_CPU_LEVEL >= 4
    return (word)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif TN_CPU_LEVEL == 3
    return (word)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    int32_t four;
    memcpy(&four, from, sizeof(four));
    return (word)_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four));
#endif
}

/* Phase e of a vector of w in memory; from_f16 explains f16's steps. */
INLINE vec widen_phase(const char *from, const tn_dtype dtype, const int e) {
    if (dtype == TN_I8) { return __builtin_convertvector(widen_bytes(from + e * VL), vec); }
    word w = *(const word_any *)from;
    if (dtype == TN_F32) { return float_bits(w); }
    word half = e == 0 ? w << 16 : w;
    if (dtype == TN_BF16) { return float_bits(half & (int32_t)0xffff0000); }
    word body = (half & 0x7fff0000) >> 3, sign = half & (int32_t)0x80000000;
    word scaled = (lanes){.v = float_bits(body) * 0x1p112f}.w, special = body | 0x7f800000,
         is_special = body >= (0x7c00 << 13);
    return float_bits(sign | (is_special & special) | (~is_special & scaled));
}

/* First by quads, so that compilers add whole registers. */
INLINE float fold_lanes(vec v) {
    lanes l = {.v = v};
    quad sum = l.q[0];
    UNROLL
    for (int i = 1; i < VL / 4; i++) {
        sum += l.q[i];
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* Adds the products of one vector of each of `group` rows of w, `apart` bytes from each other. */
INLINE void add_vectors(const tn_dtype dtype, const int rows, const int group, const char *w,
                        int64_t apart, const float *x, vec acc[FEW_ROWS][GROUP]) {
    UNROLL
    for (int e = 0; e < phases_of(dtype); e++, x += rows * VL) {
        vec wide[GROUP];
        UNROLL
        for (int r = 0; r < group; r++) {
            wide[r] = widen_phase(w + r * apart, dtype, e);
        }
        UNROLL
        for (int i = 0; i < rows; i++) {
            vec xi = *(const vec *)(x + i * VL);
            UNROLL
            for (int r = 0; r < group; r++) {
                acc[i][r] += wide[r] * xi;
            }
        }
    }
}

/* sums[i STRIP + r] = row i of x times row r of w, for `rows` rows of x and `group` of w that are
 * `apart` bytes from each other. `bytes`: the size of a row of w. Memory `ahead` bytes further on
 * is prefetched to the L2 cache: L1 has too few slots for lines in flight. */
INLINE void multiply_group(const tn_dtype dtype, const int rows, const int group, const char *w,
                           int64_t apart, int64_t bytes, int64_t ahead, const float *x,
                           float *sums) {
    vec acc[FEW_ROWS][GROUP] = {0};
    int64_t at = 0;
    for (; at + VBYTES <= bytes; at += VBYTES, x += rows * VL * phases_of(dtype)) {
        UNROLL
        for (int r = 0; r < group; r++) {
            __builtin_prefetch(w + r * apart + at + ahead, 0, 2);
        }
        add_vectors(dtype, rows, group, w + at, apart, x, acc);
    }
    if (at < bytes) {
        char rest[GROUP * VBYTES] = {0};
        for (int r = 0; r < group; r++) {
            memcpy(rest + r * VBYTES, w + r * apart + at, (size_t)(bytes - at));
        }
        add_vectors(dtype, rows, group, rest, VBYTES, x, acc);
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int r = 0; r < group; r++) {
            sums[i * STRIP + r] = fold_lanes(acc[i][r]);
        }
    }
}

/* Rows [j0, j0 + n) of w, n up to STRIP: sums[i STRIP + j]. */
INLINE void multiply_strip(const few_rows_job *job, const tn_dtype dtype, const int rows,
                           const float *x, int64_t j0, int64_t n, float *sums) {
    const int group = GROUP_FOR(rows);
    int64_t size = (int64_t)size_of(dtype), apart = job->w.row * size, bytes = job->k * size;
    const char *w = (const char *)job->w.data + j0 * apart;
    int64_t ahead = group * apart * div_up(AHEAD, max_of(1, group * apart)), j = 0;
    for (; j + group <= n; j += group) {
        multiply_group(dtype, rows, group, w + j * apart, apart, bytes, ahead, x, sums + j);
    }
    for (; j < n; j++) {
        multiply_group(dtype, rows, 1, w + j * apart, apart, bytes, ahead, x, sums + j);
    }
}

/* Kernels are for 1, 2, 4 or 8 rows. */
static int place_of(int rows) {
    return rows == 1 ? 0 : rows == 2 ? 1 : rows == 4 ? 2 : 3;
}

typedef void strip_kernel(const few_rows_job *job, const void *x, int64_t j0, int64_t n,
                          float *sums);

#define STRIP_KERNEL(name, dtype, rows)                                                      \
    static void name##_##rows(const few_rows_job *job, const void *x, int64_t j0, int64_t n, \
                              float *sums) {                                                 \
        multiply_strip(job, dtype, rows, x, j0, n, sums);                                    \
    }
#define STRIP_KERNELS(name, dtype) \
    STRIP_KERNEL(name, dtype, 1)   \
    STRIP_KERNEL(name, dtype, 2)   \
    STRIP_KERNEL(name, dtype, 4)   \
    STRIP_KERNEL(name, dtype, 8)
STRIP_KERNELS(strip_f32, TN_F32)
STRIP_KERNELS(strip_bf16, TN_BF16)
STRIP_KERNELS(strip_f16, TN_F16)
STRIP_KERNELS(strip_i8, TN_I8)

/* ---- Pairs ----------------------------------------------------------------------------------- */

#if TN_CPU_LEVEL >= 4 && defined(__x86_64__)

#define PAIR_TARGET __attribute__((target("avx512bf16")))

/* fold_lanes of 16 vectors, with the same bits. */
INLINE __m512 fold_vectors(const __m512 v[16]) {
    __m512 quads[4], halves[2];
    UNROLL
    for (int g = 0; g < 4; g++) { /* quads[g] has the quad of vectors g, 4 + g, 8 + g, 12 + g */
        __m512 low = _mm512_shuffle_f32x4(v[g], v[4 + g], 0x44),
               high = _mm512_shuffle_f32x4(v[g], v[4 + g], 0xee),
               low2 = _mm512_shuffle_f32x4(v[8 + g], v[12 + g], 0x44),
               high2 = _mm512_shuffle_f32x4(v[8 + g], v[12 + g], 0xee);
        quads[g] = _mm512_shuffle_f32x4(low, low2, 0x88) + _mm512_shuffle_f32x4(low, low2, 0xdd) +
                   _mm512_shuffle_f32x4(high, high2, 0x88) +
                   _mm512_shuffle_f32x4(high, high2, 0xdd);
    }
    UNROLL
    for (int g = 0; g < 2; g++) { /* lanes 0 and 2, 1 and 3 of each quad */
        __m512 low = _mm512_unpacklo_ps(quads[2 * g], quads[2 * g + 1]),
               high = _mm512_unpackhi_ps(quads[2 * g], quads[2 * g + 1]);
        halves[g] = low + high;
    }
    return (__m512)_mm512_unpacklo_pd((__m512d)halves[0], (__m512d)halves[1]) +
           (__m512)_mm512_unpackhi_pd((__m512d)halves[0], (__m512d)halves[1]);
}

PAIR_TARGET INLINE void add_pairs(const int rows, const int group, const char *w, int64_t apart,
                                  const char *x, __m512 acc[FEW_ROWS][GROUP]) {
    __m512bh pairs[GROUP];
    UNROLL
    for (int r = 0; r < group; r++) {
        pairs[r] = (__m512bh)_mm512_loadu_si512(w + r * apart);
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        __m512bh xi = (__m512bh)_mm512_load_si512(x + i * VBYTES);
        UNROLL
        for (int r = 0; r < group; r++) {
            acc[i][r] = _mm512_dpbf16_ps(acc[i][r], pairs[r], xi);
        }
    }
}

/* sums[i apart_sums + r]: the lanes of row i of x times row r of w, for `group` rows of w. */
PAIR_TARGET INLINE void pair_group(const int rows, const int group, const char *w, int64_t apart,
                                   int64_t bytes, int64_t ahead, const char *x, __m512 *sums,
                                   const int apart_sums) {
    __m512 acc[FEW_ROWS][GROUP] = {0};
    int64_t at = 0;
    for (; at + VBYTES <= bytes; at += VBYTES, x += rows * VBYTES) {
        UNROLL
        for (int r = 0; r < group; r++) {
            __builtin_prefetch(w + r * apart + at + ahead, 0, 2);
        }
        add_pairs(rows, group, w + at, apart, x, acc);
    }
    if (at < bytes) {
        char rest[GROUP * VBYTES] = {0};
        for (int r = 0; r < group; r++) {
            memcpy(rest + r * VBYTES, w + r * apart + at, (size_t)(bytes - at));
        }
        add_pairs(rows, group, rest, VBYTES, x, acc);
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int r = 0; r < group; r++) {
            sums[i * apart_sums + r] = acc[i][r];
        }
    }
}

/* As multiply_strip. Up to 4 rows of x one stream of w is faster than several; with 1 or 2 there is
 * so little to compute that the processor's own prefetching keeps up, and ours only leads it. */
PAIR_TARGET INLINE void pair_strip(const few_rows_job *job, const int rows, const void *x,
                                   int64_t j0, int64_t n, float *sums) {
    enum { FOLDED = 16, NEAR = 2048 };
    const int group = rows == FEW_ROWS ? 2 : 1, batch = FOLDED / rows;
    int64_t apart = job->w.row * 2, bytes = job->k * 2, ahead = rows <= 2 ? NEAR : AHEAD;
    const char *w = (const char *)job->w.data + j0 * apart;
    for (int64_t j = 0; j < n; j += batch) {
        __m512 parts[FOLDED] = {0};
        int64_t r = 0, most = min_of(batch, n - j);
        for (; r + group <= most; r += group) {
            pair_group(rows, group, w + (j + r) * apart, apart, bytes, ahead, x, parts + r, batch);
        }
        for (; r < most; r++) {
            pair_group(rows, 1, w + (j + r) * apart, apart, bytes, ahead, x, parts + r, batch);
        }
        float folded[FOLDED];
        _mm512_storeu_ps(folded, fold_vectors(parts));
        for (int i = 0; i < rows; i++) {
            memcpy(sums + i * STRIP + j, folded + i * batch, (size_t)batch * sizeof(*sums));
        }
    }
}

#define PAIR_KERNEL(rows)                                                                          \
    PAIR_TARGET static void strip_pairs_##rows(const few_rows_job *job, const void *x, int64_t j0, \
                                               int64_t n, float *sums) {                           \
        pair_strip(job, rows, x, j0, n, sums);                                                     \
    }
PAIR_KERNEL(1)
PAIR_KERNEL(2)
PAIR_KERNEL(4)
PAIR_KERNEL(8)

static strip_kernel *find_pairs(const few_rows_job *job, int rows) {
    static strip_kernel *const kernels[] = {strip_pairs_1, strip_pairs_2, strip_pairs_4,
                                            strip_pairs_8};
    bool pairs = job->x.dtype == TN_BF16 && job->w.dtype == TN_BF16 && pairs_pay();
    return pairs ? kernels[place_of(rows)] : NULL;
}

#else

static strip_kernel *find_pairs(const few_rows_job *job, int rows) {
    return NULL;
}

#endif

/* Row i of `rows` packed rows, which are 0 before. */
static void pack_pairs(uint16_t *packed, const few_rows_job *job, int64_t i, int rows) {
    enum { WIDE = 2 * VL };
    const uint16_t *x = (const uint16_t *)job->x.data + i * job->x.row;
    packed += i % rows * WIDE;
    for (int64_t p = 0; p < job->k; p += WIDE, packed += rows * WIDE) {
        int64_t n = min_of(WIDE, job->k - p);
        if (job->x.col == 1) {
            memcpy(packed, x + p, (size_t)n * sizeof(*x));
            continue;
        }
        for (int64_t l = 0; l < n; l++) {
            packed[l] = x[(p + l) * job->x.col];
        }
    }
}

/* ---- The product ----------------------------------------------------------------------------- */

static strip_kernel *find_kernel(tn_dtype dtype, int rows) {
    static strip_kernel *const kernels[][4] = {
        {strip_f32_1, strip_f32_2, strip_f32_4, strip_f32_8},
        {strip_bf16_1, strip_bf16_2, strip_bf16_4, strip_bf16_8},
        {strip_f16_1, strip_f16_2, strip_f16_4, strip_f16_8},
        {strip_i8_1, strip_i8_2, strip_i8_4, strip_i8_8},
    };
    int of = dtype == TN_F32 ? 0 : dtype == TN_BF16 ? 1 : dtype == TN_F16 ? 2 : 3;
    return kernels[of][place_of(rows)];
}

/* Row i of `rows` packed rows, with zeros after its k elements. `row` has room for `padded`. */
static void pack_row(float *packed, float *row, const few_rows_job *job, int64_t i, int rows,
                     int64_t padded) {
    const gemm_side *x = &job->x;
    const int phases = phases_of(job->w.dtype);
    memset(row + job->k, 0, (size_t)(padded - job->k) * sizeof(*row));
    load_f32(row, (const char *)x->data + i * x->row * (int64_t)size_of(x->dtype), x->dtype, x->col,
             job->k);
    packed += i % rows * VL;
    for (int64_t p = 0; p < padded; p += VL * phases) {
        for (int e = 0; e < phases; e++, packed += (int64_t)rows * VL) {
            for (int l = 0; l < VL; l++) {
                packed[l] = row[p + (job->w.dtype == TN_I8 ? e * VL + l : l * phases + e)];
            }
        }
    }
}

/* The strip's sums of rows [i0, i0 + m) to y. */
static void store_strip(const few_rows_job *job, int64_t i0, int64_t m, int64_t j0, int64_t n,
                        float *sums) {
    float old[STRIP];
    for (int64_t i = i0; i < i0 + m; i++, sums += STRIP) {
        char *to = (char *)job->y + (i * job->row + j0 * job->col) * (int64_t)size_of(job->dtype);
        for (int64_t j = 0; j < n; j++) {
            sums[j] = (float)job->alpha * sums[j];
        }
        if (job->scale) {
            for (int64_t j = 0; j < n; j++) {
                sums[j] *= job->scale[j0 + j];
            }
        }
        if (job->bias) {
            for (int64_t j = 0; j < n; j++) {
                sums[j] += job->bias[j0 + j];
            }
        }
        if (job->beta != 0) {
            load_f32(old, to, job->dtype, job->col, n);
            for (int64_t j = 0; j < n; j++) {
                sums[j] += (float)job->beta * old[j];
            }
        }
        store_f32(to, job->dtype, job->col, sums, n);
    }
}

tn_status TN_CPU(few_rows)(tn_context *ctx, const few_rows_job *job) {
    int rows = job->m == 1 ? 1 : job->m == 2 ? 2 : job->m <= 4 ? 4 : FEW_ROWS;
    strip_kernel *pairs = find_pairs(job, rows),
                 *kernel = pairs ? pairs : find_kernel(job->w.dtype, rows);
    int64_t unit = VBYTES / (int64_t)size_of(job->w.dtype), padded = div_up(job->k, unit) * unit,
            strips = div_up(job->n, STRIP), blocks = div_up(job->m, rows);
    size_t each = (size_t)padded * (pairs ? sizeof(uint16_t) : sizeof(float)),
           all = (size_t)(blocks * rows) * each;
    TN__SCRATCH(char, memory, ctx, VBYTES + all + (size_t)padded * sizeof(float));
    if (!memory) { return TN_ENOMEM; }
    char *packed = memory + (VBYTES - (uintptr_t)memory % VBYTES) % VBYTES;
    memset(packed, 0, all);
    for (int64_t i = 0; i < job->m; i++) {
        char *block = packed + (size_t)(i / rows * rows) * each;
        if (pairs) {
            pack_pairs((uint16_t *)block, job, i, rows);
        } else {
            pack_row((float *)block, (float *)(packed + all), job, i, rows, padded);
        }
    }
    int threads = (int)min_of(job->threads, strips);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t s = 0; s < strips; s++) {
        float sums[FEW_ROWS * STRIP];
        int64_t j0 = s * STRIP, n = min_of(STRIP, job->n - j0);
        for (int64_t i0 = 0; i0 < job->m; i0 += rows) {
            kernel(job, packed + (size_t)i0 * each, j0, n, sums);
            store_strip(job, i0, min_of(rows, job->m - i0), j0, n, sums);
        }
    }
    return TN_OK;
}
