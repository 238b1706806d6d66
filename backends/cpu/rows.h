/* Sums, maxima and exponentials over one contiguous f32 row: what softmax, norms, losses and reductions are made of.
 *
 * A sum runs in LANES independent lanes (so it vectorises without reordering anything behind the program's back), which
 * are folded and added to a double every BLOCK elements: an element passes through at most BLOCK / LANES + 5 f32 additions.
 */
#ifndef TERN_BACKENDS_CPU_ROWS_H
#define TERN_BACKENDS_CPU_ROWS_H

#include "backends/cpu/convert.h"
#include "backends/polynomials.h"

enum { LANES = 32, BLOCK = 1024 };

/* a[i] += b[i] for `w` lanes from the upper half until one is left. */
INLINE float fold_sum(float *lane) {
    for (int w = LANES / 2; w > 0; w /= 2) {
        for (int i = 0; i < w; i++) {
            lane[i] += lane[i + w];
        }
    }
    return lane[0];
}

/* The sum over i < n of `term`, an expression in i. */
#define ROW_SUM(total, n, term)                                                                      \
    do {                                                                                             \
        for (int64_t from_ = 0; from_ < (n); from_ += BLOCK) {                                       \
            int64_t to_ = min64(from_ + BLOCK, (n)), whole_ = from_ + (to_ - from_) / LANES * LANES; \
            float lane_[LANES] = {0};                                                                \
            for (int64_t block_ = from_; block_ < whole_; block_ += LANES) {                         \
                _Pragma("omp simd") for (int l_ = 0; l_ < LANES; l_++) {                             \
                    int64_t i = block_ + l_;                                                         \
                    lane_[l_] += (term);                                                             \
                }                                                                                    \
            }                                                                                        \
            for (int64_t i = whole_; i < to_; i++) {                                                 \
                lane_[i - whole_] += (term);                                                         \
            }                                                                                        \
            (total) += (double)fold_sum(lane_);                                                      \
        }                                                                                            \
    } while (0)

static inline double row_sum(const float *x, int64_t n) {
    double total = 0;
    ROW_SUM(total, n, x[i]);
    return total;
}
static inline double row_dot(const float *x, const float *y, int64_t n) {
    double total = 0;
    ROW_SUM(total, n, x[i] * y[i]);
    return total;
}

/* The largest (smallest) element, NaN when there is one; -inf (inf) for no elements. */
#define ROW_BEST(name, better, worst)                                         \
    static inline float name(const float *x, int64_t n) {                     \
        float lane[LANES];                                                    \
        int32_t odd[LANES] = {0}; /* lanes that met a NaN */                  \
        for (int l = 0; l < LANES; l++) {                                     \
            lane[l] = worst;                                                  \
        }                                                                     \
        int64_t whole = n / LANES * LANES;                                    \
        for (int64_t i = 0; i < whole; i += LANES) {                          \
            _Pragma("omp simd") for (int l = 0; l < LANES; l++) {             \
                float v = x[i + l];                                           \
                lane[l] = v better lane[l] ? v : lane[l];                     \
                odd[l] |= v != v;                                             \
            }                                                                 \
        }                                                                     \
        for (int64_t i = whole; i < n; i++) {                                 \
            float v = x[i];                                                   \
            lane[i - whole] = v better lane[i - whole] ? v : lane[i - whole]; \
            odd[i - whole] |= v != v;                                         \
        }                                                                     \
        for (int w = LANES / 2; w > 0; w /= 2) {                              \
            for (int l = 0; l < w; l++) {                                     \
                lane[l] = lane[l + w] better lane[l] ? lane[l + w] : lane[l]; \
                odd[l] |= odd[l + w];                                         \
            }                                                                 \
        }                                                                     \
        return odd[0] ? NAN : lane[0];                                        \
    }
ROW_BEST(row_max, >, -INFINITY)
ROW_BEST(row_min, <, INFINITY)

/* e^x for x that is not NaN and at most about 1 (-inf too): what is left of tn__expf when nothing can overflow. Error
 * <= 1 ulp; below 2^-126 the result is 0. The comparison is one of bits: negative floats grow as unsigned integers. */
INLINE float exp_down(float x) {
    uint32_t bits = bits_of_float(x);
    x = float_of_bits(bits < 0xC2B00000u ? bits : 0xC2B00000u); /* -88: 2^-127, which is stored as 0 */
    float shifted = x * TN__LOG2E + TN__ROUND_MAGIC;
    float scale = float_of_bits((bits_of_float(shifted) << 23) + 0x3F800000u);
    return (1.0f + tn__expm1_small(tn__exp_remainder(x, shifted))) * scale;
}

/* Whether exponentials of a row shifted by `top`, its maximum or lse, are exp_down's. */
static inline bool goes_down(float top) {
    return top > -INFINITY && top < INFINITY;
}

/* y[i] = exp(x[i] - shift), and their sum; shift is at least the maximum. y may be x. */
#define EXP_SUM(total, exponential, keep)                                            \
    for (int64_t from = 0; from < n; from += BLOCK) {                                \
        int64_t to = min64(from + BLOCK, n);                                         \
        float sum = 0;                                                               \
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = from; i < to; i++) { \
            float e = exponential(x[i] - shift);                                     \
            keep;                                                                    \
            sum += e;                                                                \
        }                                                                            \
        total += (double)sum;                                                        \
    }
static inline double row_exp_sum(float *y, const float *x, float shift, int64_t n) {
    double total = 0;
    if (goes_down(shift)) {
        EXP_SUM(total, exp_down, y[i] = e)
    } else {
        EXP_SUM(total, tn__expf, y[i] = e)
    }
    return total;
}
/* The sum alone. */
static inline double row_exp_total(const float *x, float shift, int64_t n) {
    double total = 0;
    if (goes_down(shift)) {
        EXP_SUM(total, exp_down, (void)0)
    } else {
        EXP_SUM(total, tn__expf, (void)0)
    }
    return total;
}

/* ---- Rows of an operand of any ndim: the last dimension is the row ---------------------------------------------------------- */

static inline int64_t row_length(const tn_desc *d) {
    return d->ndim > 0 ? d->size[d->ndim - 1] : 1;
}
static inline int64_t row_stride(const tn_desc *d) {
    return d->ndim > 0 ? d->stride[d->ndim - 1] : 1;
}
/* The element offset of row r, rows counted in row-major order. */
static inline int64_t row_offset(const tn_desc *d, int64_t r) {
    int64_t offset = 0;
    for (int k = d->ndim - 2; k >= 0; k--) {
        offset += r % d->size[k] * d->stride[k];
        r /= d->size[k];
    }
    return offset;
}
/* Rows per task, so that a task is about CHUNK elements. */
static inline int64_t rows_per_task(int64_t row) {
    return max64(1, CHUNK / max64(1, row));
}

#endif
