/* Sums, maxima and exponentials over one contiguous f32 row: what softmax, norms, losses and
 * reductions are built on.
 *
 * A sum runs in LANES independent lanes (so it vectorises without hidden reordering), which are
 * folded and added to a double every BLOCK elements: an element passes through at most BLOCK /
 * LANES + 5 f32 additions.
 */
#ifndef TERN_BACKENDS_CPU_ROWS_H
#define TERN_BACKENDS_CPU_ROWS_H

#include "backends/cpu/convert.h"
#include "backends/polynomials.h"

enum { LANES = 32, BLOCK = 1024 };

/* Adds the upper half of the lanes to the lower half until one lane is left. */
INLINE float fold_sum(float *lane) {
    for (int w = LANES / 2; w > 0; w /= 2) {
        for (int i = 0; i < w; i++) {
            lane[i] += lane[i + w];
        }
    }
    return lane[0];
}

/* The sum over i < n of `term`, an expression in i. */
#define ROW_SUM(total, n, term)                                              \
    do {                                                                     \
        for (int64_t from_ = 0; from_ < (n); from_ += BLOCK) {               \
            int64_t to_ = min_of(from_ + BLOCK, (n)),                        \
                    whole_ = from_ + (to_ - from_) / LANES * LANES;          \
            float lane_[LANES] = {0};                                        \
            for (int64_t block_ = from_; block_ < whole_; block_ += LANES) { \
                _Pragma("omp simd") for (int l_ = 0; l_ < LANES; l_++) {     \
                    int64_t i = block_ + l_;                                 \
                    lane_[l_] += (term);                                     \
                }                                                            \
            }                                                                \
            for (int64_t i = whole_; i < to_; i++) {                         \
                lane_[i - whole_] += (term);                                 \
            }                                                                \
            (total) += (double)fold_sum(lane_);                              \
        }                                                                    \
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

/* The sum of x[i]^2 in double lanes, where squares are exact: a norm of many rows then agrees to
 * 1e-15 however they are split over calls and ranks. */
static inline double row_squares(const float *x, int64_t n) {
    double lane[LANES] = {0};
    int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        _Pragma("omp simd") for (int l = 0; l < LANES; l++) {
            double v = (double)x[i + l];
            lane[l] += v * v;
        }
    }
    for (int64_t i = whole; i < n; i++) {
        lane[i - whole] += (double)x[i] * (double)x[i];
    }
    for (int w = LANES / 2; w > 0; w /= 2) {
        for (int l = 0; l < w; l++) {
            lane[l] += lane[l + w];
        }
    }
    return lane[0];
}

/* The largest (smallest) element; -inf (inf) for no elements. A NaN among them is the result, or
 * with `skips` is passed over. What fills no LANES has a scalar: a lane that is indexed leaves its
 * register. */
#define ROW_BEST(name, better, worst, skips)                                  \
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
        float best = worst;                                                   \
        int32_t rest_odd = 0;                                                 \
        for (int64_t i = whole; i < n; i++) {                                 \
            best = x[i] better best ? x[i] : best;                            \
            rest_odd |= x[i] != x[i];                                         \
        }                                                                     \
        for (int w = LANES / 2; w > 0; w /= 2) {                              \
            for (int l = 0; l < w; l++) {                                     \
                lane[l] = lane[l + w] better lane[l] ? lane[l + w] : lane[l]; \
                odd[l] |= odd[l + w];                                         \
            }                                                                 \
        }                                                                     \
        best = lane[0] better best ? lane[0] : best;                          \
        return !(skips) && (odd[0] | rest_odd) ? NAN : best;                  \
    }
ROW_BEST(row_max, >, -INFINITY, false)
ROW_BEST(row_min, <, INFINITY, false)
ROW_BEST(row_top, >, -INFINITY, true)

/* What exp_down takes as `low`. The compiler must not know its value: with a constant it turns the
 * clamp into a chain of comparisons and selects. Read it once before a loop. */
static const volatile float exp_low = -88; /* 2^-127, which is stored as 0 */

/* x - n ln 2 for n = shifted - TN__ROUND_MAGIC. With a fused multiply-add one step is enough: it
 * leaves an error of 2^-29 n, which at n = -127, the smallest result, is 2 ulp of the
 * exponential. */
INLINE float exp_rest(float x, float shifted) {
#if TN_CPU_LEVEL >= 3
    return x - (shifted - TN__ROUND_MAGIC) * 0.69314718056f;
#else
    return tn__exp_remainder(x, shifted);
#endif
}

/* e^x for x up to about 1: what is left of tn__expf if nothing can overflow. Error <= 1 ulp near 1,
 * 3 ulp where the result is smallest; results below 2^-126 are 0; NaN stays. */
INLINE float exp_down(float x, float low) {
    x = x < low ? low : x;
    float shifted = x * TN__LOG2E + TN__ROUND_MAGIC;
    float scale = float_of_bits((bits_of_float(shifted) << 23) + 0x3F800000u);
    return tn__expm1_small(exp_rest(x, shifted)) * scale + scale;
}

/* What exp_between takes as `low` and `high`; volatile like exp_low. */
static const volatile float exp_limits[2] = {-88, 89};

/* e^x with results below 2^-126 as 0 and from 2^127.5 on as inf: tn__expf for use inside a sigmoid.
 * Between the limits 2^n is one float, 0 and inf included. NaN stays. */
INLINE float exp_between(float x, float low, float high) {
    x = x < low ? low : x;
    x = x > high ? high : x;
    float shifted = x * TN__LOG2E + TN__ROUND_MAGIC;
    float scale = float_of_bits((bits_of_float(shifted) << 23) + 0x3F800000u);
    return (1.0f + tn__expm1_small(tn__exp_remainder(x, shifted))) * scale;
}

/* y[i] = exp(x[i] - shift), and their sum; shift is at least the maximum. y may be x. */
static inline double row_exp_sum(float *y, const float *x, float shift, int64_t n) {
    const float low = exp_low;
    double total = 0;
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t to = min_of(from + BLOCK, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < to; i++) {
            float e = exp_down(x[i] - shift, low);
            y[i] = e;
            sum += e;
        }
        total += (double)sum;
    }
    return total;
}

/* log sum exp(x) = *most + log(result), with *most the maximum: in one pass, BLOCK elements at a
 * time. NaN for a row with a NaN or +inf, and for one that is all -inf. */
static inline double row_exp_total(const float *x, int64_t n, float *most) {
    const float low = exp_low;
    double total = 0;
    *most = -INFINITY;
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t to = min_of(from + BLOCK, n);
        float sum = 0, top = row_top(x + from, to - from);
        if (top > *most) {
            total = total > 0 ? total * exp((double)*most - (double)top) : total;
            *most = top;
        }
        float shift = *most == -INFINITY ? 0 : *most;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < to; i++) {
            sum += exp_down(x[i] - shift, low);
        }
        total += (double)sum;
    }
    return *most == -INFINITY ? NAN : total;
}

/* ---- Rows of an operand of any ndim: the last dimension is the row --------------------------- */

static inline int64_t row_length(const tn_desc *d) {
    return d->ndim > 0 ? d->size[d->ndim - 1] : 1;
}
static inline int64_t row_stride(const tn_desc *d) {
    return d->ndim > 0 ? d->stride[d->ndim - 1] : 1;
}
/* The element offset of row r, rows counted in row-major order. */
static inline int64_t row_offset(const tn_desc *d, int64_t r) {
    int64_t offset = 0;
    for (int k = d->ndim - 2; k > 0; k--) {
        offset += r % d->size[k] * d->stride[k];
        r /= d->size[k];
    }
    return d->ndim > 1 ? offset + r * d->stride[0] : 0;
}
/* Rows per task, so that a task is about CHUNK elements. */
static inline int64_t rows_per_task(int64_t row) {
    return max_of(1, CHUNK / max_of(1, row));
}

/* ---- Rows as contiguous f32 ------------------------------------------------------------------ */

/* What is done with each row of some operands of one shape. Rows that are not contiguous f32 pass
 * through buffers; y shares that of the last operand that is read. */
typedef struct row_walk {
    const tn_desc *y, *x[2]; /* written or NULL, read; x[1] may be NULL */
    void (*body)(const void *user, int64_t row, float *y, const float *const *x);
    const void *user;
} row_walk;

static inline bool rows_in_place(const tn_desc *d) {
    return !d || (d->dtype == TN_F32 && (row_stride(d) == 1 || row_length(d) == 1));
}
static inline float *row_in_place(const tn_desc *d, int64_t r) {
    return d ? (float *)d->data + row_offset(d, r) : NULL;
}

static inline void walk_row(const row_walk *w, int64_t r, int64_t n, float *buffer) {
    const float *x[2] = {NULL, NULL};
    for (int i = 0; i < 2 && w->x[i]; i++) {
        const tn_desc *d = w->x[i];
        buffer += i * n;
        x[i] = row_f32(buffer, desc_at(d, row_offset(d, r)), d->dtype, row_stride(d), n);
    }
    bool in_place = rows_in_place(w->y);
    w->body(w->user, r, in_place ? row_in_place(w->y, r) : buffer, x);
    if (!in_place) {
        store_f32(desc_at(w->y, row_offset(w->y, r)), w->y->dtype, row_stride(w->y), buffer, n);
    }
}

static inline tn_status walk_rows(tn_context *ctx, const row_walk *w) {
    int64_t n = row_length(w->x[0]), count = count_of(w->x[0]), each = w->x[1] ? 2 * n : n;
    if (count == 0) { return TN_OK; }
    int64_t rows = count / n, height = rows_per_task(n), tasks = div_up(rows, height);
    bool in_place = rows_in_place(w->y) && rows_in_place(w->x[0]) && rows_in_place(w->x[1]);
    int threads = team_size(tasks, count);
    TN__SCRATCH_IF(!in_place, float, buffers, ctx, each *(int64_t)threads);
    if (!in_place && !buffers) { return TN_ENOMEM; }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        int me = threads > 1 ? omp_get_thread_num() : 0;
        for (int64_t r = task * height; r < min_of((task + 1) * height, rows); r++) {
            if (in_place) {
                const float *x[2] = {row_in_place(w->x[0], r), row_in_place(w->x[1], r)};
                w->body(w->user, r, row_in_place(w->y, r), x);
            } else {
                walk_row(w, r, n, buffers + me * each);
            }
        }
    }
    return TN_OK;
}

#endif
