/* The arithmetic of reductions between ranks, for every engine: simple loops over dense elements,
 * which the compiler vectorises. An engine splits the work between ranks;
 * nothing here starts a thread.
 *
 * One function per dtype and operation combines two arrays. bf16 and f16 go through f32, a block at
 * a time. Integers wrap: their sums and products are computed unsigned; but a mean of i32, i8 and
 * u8 is that of the exact sum.
 */
#include "tensor/half.h"
#include "tern/sys/group.h"

#include <string.h>

/* Elements that are reduced over all ranks before the next ones:
 * intermediate results stay in the first-level cache. */
enum { BLOCK = 1024 };

/* ---- Two arrays ------------------------------------------------------------------------------ */

/* y[i] = a[i] (op) b[i]; y may be a or b. */
typedef void combine(void *y, const void *a, const void *b, int64_t n);

#define SUM(a, b) ((a) + (b))
#define PRODUCT(a, b) ((a) * (b))
/* NaN wins: no comparison with it holds, so a NaN in b is taken, and a is tested for it. */
#define MIN(a, b) ((a) != (a) || (a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) != (a) || (a) > (b) ? (a) : (b))

#define COMBINE(name, type, op)                                                   \
    static void name(void *out, const void *left, const void *right, int64_t n) { \
        type *y = out;                                                            \
        const type *a = left, *b = right;                                         \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                     \
            y[i] = (type)op(a[i], b[i]);                                          \
        }                                                                         \
    }

/* `wrapping` is the type in which sums and products do not overflow. */
#define COMBINE_ALL(name, type, wrapping)      \
    COMBINE(name##_sum, wrapping, SUM)         \
    COMBINE(name##_product, wrapping, PRODUCT) \
    COMBINE(name##_min, type, MIN)             \
    COMBINE(name##_max, type, MAX)

COMBINE_ALL(f32, float, float)
COMBINE_ALL(f64, double, double)
COMBINE_ALL(i64, int64_t, uint64_t)
COMBINE_ALL(i32, int32_t, uint32_t)
COMBINE_ALL(u8, uint8_t, uint8_t)
COMBINE_ALL(i8, int8_t, uint8_t)

/* NULL: not a dtype or operation of collectives. bf16 and f16 get the f32 function. */
static combine *combine_of(tn_reduction how, tn_dtype dtype) {
#define ROW(name)                                                                     \
    {                                                                                 \
        [TN_MEAN] = name##_sum, [TN_SUM] = name##_sum, [TN_PRODUCT] = name##_product, \
        [TN_MIN] = name##_min, [TN_MAX] = name##_max                                  \
    }
    static combine *const table[TN_DTYPES][TN_NONE + 1] = {
        [TN_F32] = ROW(f32), [TN_F64] = ROW(f64), [TN_BF16] = ROW(f32), [TN_F16] = ROW(f32),
        [TN_I64] = ROW(i64), [TN_I32] = ROW(i32), [TN_U8] = ROW(u8),    [TN_I8] = ROW(i8)};
#undef ROW
    bool known = (unsigned)dtype < TN_DTYPES && (unsigned)how <= TN_NONE;
    return known ? table[dtype][how] : NULL;
}

/* ---- One array ------------------------------------------------------------------------------- */

static void widen_floats(tn_dtype dtype, float *restrict y, const void *x, int64_t n) {
    const tn_bf16 *b = x;
    const tn_f16 *f = x;
    if (dtype == TN_BF16) {
        for (int64_t i = 0; i < n; i++) {
            y[i] = tn__bf16_to_float(b[i]);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        y[i] = tn__f16_to_float(f[i]);
    }
}

static void narrow_floats(tn_dtype dtype, void *y, const float *restrict x, int64_t n) {
    tn_bf16 *b = y;
    tn_f16 *f = y;
    if (dtype == TN_BF16) {
        for (int64_t i = 0; i < n; i++) {
            b[i] = tn__bf16_from_float(x[i]);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        f[i] = tn__f16_from_float(x[i]);
    }
}

/* x / ranks. Where ranks is a power of two its inverse is exact, and the faster product has the
 * same bits. */
#define DIVIDE_FLOAT(name, type)                                 \
    static void name(type *x, int64_t n, int ranks) {            \
        const type divisor = (type)ranks, inverse = 1 / divisor; \
        if ((ranks & (ranks - 1)) == 0) {                        \
            for (int64_t i = 0; i < n; i++) {                    \
                x[i] *= inverse;                                 \
            }                                                    \
            return;                                              \
        }                                                        \
        for (int64_t i = 0; i < n; i++) {                        \
            x[i] /= divisor;                                     \
        }                                                        \
    }
DIVIDE_FLOAT(divide_f32, float)
DIVIDE_FLOAT(divide_f64, double)

/* The mean of integers, towards zero. Sums of i32, i8 and u8 are exact; those of i64 wrap. */
#define MEAN_INT(name, type)                                                               \
    static void name(type *y, const void *const *x, int ranks, int64_t begin, int64_t n) { \
        uint64_t sum[BLOCK] = {0};                                                         \
        for (int r = 0; r < ranks; r++) {                                                  \
            const type *from = (const type *)x[r] + begin;                                 \
            for (int64_t i = 0; i < n; i++) {                                              \
                sum[i] += (uint64_t)from[i];                                               \
            }                                                                              \
        }                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                  \
            y[i] = (type)((int64_t)sum[i] / ranks);                                        \
        }                                                                                  \
    }
MEAN_INT(mean_i64, int64_t)
MEAN_INT(mean_i32, int32_t)
MEAN_INT(mean_u8, uint8_t)
MEAN_INT(mean_i8, int8_t)

/* ---- The reductions -------------------------------------------------------------------------- */

/* The reduction of one block at byte `offset` of every x. Partial results stay in `acc`, so y may
 * be any of the x. */
static void reduce_block(tn_reduction how, tn_dtype dtype, void *y, const void *const *x, int ranks,
                         int64_t offset, int64_t n) {
    combine *f = combine_of(how, dtype);
    double acc[BLOCK];
    const void *left = (const char *)x[0] + offset;
    for (int r = 1; r < ranks; r++) {
        void *to = r == ranks - 1 ? y : acc;
        f(to, left, (const char *)x[r] + offset, n);
        left = acc;
    }
    if (how == TN_MEAN && dtype == TN_F32) {
        divide_f32(y, n, ranks);
    } else if (how == TN_MEAN) {
        divide_f64(y, n, ranks);
    }
}

static void reduce_half_block(tn_reduction how, tn_dtype dtype, void *y, const void *const *x,
                              int ranks, int64_t offset, int64_t n) {
    combine *f = combine_of(how, dtype);
    float acc[BLOCK], next[BLOCK];
    widen_floats(dtype, acc, (const char *)x[0] + offset, n);
    for (int r = 1; r < ranks; r++) {
        widen_floats(dtype, next, (const char *)x[r] + offset, n);
        f(acc, acc, next, n);
    }
    if (how == TN_MEAN) { divide_f32(acc, n, ranks); }
    narrow_floats(dtype, y, acc, n);
}

void tn__reduce_all(tn_reduction how, tn_dtype dtype, void *y, const void *const *x, int ranks,
                    int64_t n) {
    if (!combine_of(how, dtype) || !y || !x || ranks < 1) { return; }
    int64_t size = (int64_t)tn_dtype_size(dtype);
    if (ranks == 1) {
        memmove(y, x[0], n > 0 ? (size_t)(n * size) : 0);
        return;
    }
    for (int64_t at = 0; at < n; at += BLOCK) {
        void *to = (char *)y + at * size;
        int64_t m = n - at < BLOCK ? n - at : BLOCK;
        if (dtype == TN_BF16 || dtype == TN_F16) {
            reduce_half_block(how, dtype, to, x, ranks, at * size, m);
        } else if (how == TN_MEAN && dtype == TN_I64) {
            mean_i64(to, x, ranks, at, m);
        } else if (how == TN_MEAN && dtype == TN_I32) {
            mean_i32(to, x, ranks, at, m);
        } else if (how == TN_MEAN && dtype == TN_U8) {
            mean_u8(to, x, ranks, at, m);
        } else if (how == TN_MEAN && dtype == TN_I8) {
            mean_i8(to, x, ranks, at, m);
        } else {
            reduce_block(how, dtype, to, x, ranks, at * size, m);
        }
    }
}
