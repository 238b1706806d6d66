/* Sums, means, sums of squares, maxima and minima of f32, bf16 and f16; f64, integers and bool are
 * left to ref. Results of few elements each are left to reduce_short.c.
 *
 * x's dimensions of size 1 are dropped, the others sorted by stride and merged. If the innermost
 * one is reduced, rows are folded (rows.h has the sum of a row); if it is kept, or is too short to
 * fill the lanes of a row, columns are added up: STEP rows in f32, then into a double. If there are
 * fewer results than threads could use, the reduced range is cut into bands whose partial results
 * are combined in order.
 */
#include "backends/desc.h"
#include "backends/axes.h"
#include "backends/cpu/reduce.h"
#include "backends/cpu/rows.h"

enum {
    COLUMNS = 1024,
    STEP = 16,
    MOST_BANDS = 64,
    FEW = 32,
    SHORT = LANES,
    NARROW = 8,
    WIDE = 256
};

typedef struct reduction {
    tn_reduction f;
    const tn_desc *y, *x;
    tn__axes stays, goes; /* dimensions kept and reduced, without the inner one */
    int64_t inner, inner_x, inner_y;
    bool inner_goes;
    bool split; /* the inner dimension is long: goes' only axis cuts it into pieces of CHUNK */
    int64_t group, rest;   /* columns: x's rows in a row of goes, and in its last one (1: as is) */
    int64_t bands, height; /* of goes.total */
    double count;          /* elements in one result */
    double *partial;       /* (stays, bands, inner or 1); NULL for one band */
} reduction;

/* Dimension k of `a` becomes r's inner one. */
static void take_inner(reduction *r, tn__axes *a, int k, bool goes) {
    r->inner = a->size[k];
    r->inner_x = a->x[k];
    r->inner_y = a->y[k];
    r->inner_goes = goes;
    a->total /= a->size[k];
    a->count--;
    for (; k < a->count; k++) {
        a->size[k] = a->size[k + 1];
        a->x[k] = a->x[k + 1];
        a->y[k] = a->y[k + 1];
    }
}

/* The axis along which columns run: the innermost, or the longest if that is narrow. */
static int column_axis(const tn__axes *stays) {
    int best = stays->count - 1;
    for (int k = best - 1; k >= 0 && stays->size[stays->count - 1] < NARROW; k--) {
        best = stays->size[k] > stays->size[best] ? k : best;
    }
    return best;
}

/* Whether rows are folded, not columns: the reduced elements are closer together, and fill the
 * lanes or are at least as many as a row of columns. */
static bool folds_rows(const tn__axes *stays, const tn__axes *goes) {
    if (stays->count == 0 || goes->count == 0) { return stays->count == 0; }
    int s = stays->count - 1, g = goes->count - 1;
    return goes->x[g] < stays->x[s] &&
           (goes->size[g] >= SHORT || goes->size[g] >= stays->size[column_axis(stays)]);
}

/* Few columns in rows without gaps: several consecutive rows are treated as one of WIDE columns,
 * and folded onto one another at the end. */
static void group_rows(reduction *r) {
    tn__axes *goes = &r->goes;
    r->group = r->rest = 1;
    if (r->inner_x == 1 && goes->count == 1 && goes->x[0] == r->inner && r->inner <= WIDE / 4 &&
        goes->total >= WIDE) {
        r->group = WIDE / r->inner;
        r->rest = (goes->total - 1) % r->group + 1;
        goes->total = goes->size[0] = div_up(goes->total, r->group);
        goes->x[0] *= r->group;
    }
}

static void plan_reduction(reduction *r) {
    const tn_desc *x = r->x, *y = r->y;
    int order[TN_MAX_DIMS], n = tn__axes_order(x, order);
    r->stays.total = r->goes.total = 1;
    for (int k = 0; k < n; k++) {
        int d = order[k];
        bool goes = y->size[d] == 1;
        tn__axes_push(goes ? &r->goes : &r->stays, x->size[d], x->stride[d],
                      goes ? 0 : y->stride[d]);
    }
    tn__axes *stays = &r->stays, *goes = &r->goes;
    if (stays->count == 0 && goes->count == 0) {
        r->inner = 1;
        r->inner_goes = true;
    } else if (folds_rows(stays, goes)) {
        take_inner(r, goes, goes->count - 1, true);
        if (goes->total == 1 && r->inner > CHUNK) {
            r->split = true;
            tn__axes_push(goes, div_up(r->inner, CHUNK), CHUNK * r->inner_x, 0);
        }
    } else {
        take_inner(r, stays, column_axis(stays), false);
        group_rows(r);
    }
}

static inline double neutral_value(tn_reduction f) {
    return f == TN_MAX ? -INFINITY : f == TN_MIN ? INFINITY : 0;
}
static inline double combine_values(tn_reduction f, double a, double b) {
    if (f == TN_MAX || f == TN_MIN) {
        bool better = f == TN_MAX ? b > a : b < a;
        return (better || b != b) ? b : a;
    }
    return a + b;
}

static double fold_row(tn_reduction f, const float *x, int64_t n) {
    switch (f) {
    case TN_MAX:
        return row_max(x, n);
    case TN_MIN:
        return row_min(x, n);
    case TN_SUM_SQUARES:
        return row_squares(x, n);
    default:
        return row_sum(x, n);
    }
}

/* Rows [first, last) of the reduced range, for the output at x offset `base`, as one number. */
static double fold_rows(const reduction *r, int64_t base, int64_t first, int64_t last) {
    double total = neutral_value(r->f);
    float buffer[BLOCK];
    bool plain = r->x->dtype == TN_F32 && (r->inner_x == 1 || r->inner == 1);
    int64_t length = r->inner;
    for (int64_t i = first; i < last; i++) {
        int64_t offset = base, unused = 0;
        tn__axes_at(&r->goes, i, &offset, &unused);
        if (r->split) { length = min_of(CHUNK, r->inner - i * CHUNK); }
        if (plain) {
            total = combine_values(r->f, total,
                                   fold_row(r->f, (const float *)desc_at(r->x, offset), length));
            continue;
        }
        for (int64_t j = 0; j < length; j += BLOCK) {
            int64_t n = min_of(BLOCK, length - j);
            load_f32(buffer, desc_at(r->x, offset + j * r->inner_x), r->x->dtype, r->inner_x, n);
            total = combine_values(r->f, total, fold_row(r->f, buffer, n));
        }
    }
    return total;
}

/* Folds x[j] into sum[j]. */
static void take_row(tn_reduction f, float *restrict sum, const float *restrict x, int64_t n) {
    switch (f) {
    case TN_MAX:
        fold_onto(TN_MAX, sum, x, n);
        break;
    case TN_MIN:
        fold_onto(TN_MIN, sum, x, n);
        break;
    case TN_SUM_SQUARES:
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            sum[j] += x[j] * x[j];
        }
        break;
    default:
        fold_onto(TN_SUM, sum, x, n);
        break;
    }
}

/* Rows [first, last) of the reduced range, columns [from, from + n), to total[n]. Rows that pass
 * through the buffer are padded, since a remainder costs more than a vector. */
static void fold_columns(const reduction *r, int64_t base, int64_t first, int64_t last,
                         int64_t from, int64_t n, double *total) {
    float sum[COLUMNS], buffer[COLUMNS];
    bool rounds = r->f != TN_MAX && r->f != TN_MIN;
    int64_t step = rounds ? STEP : last - first, padded = div_up(n, NARROW) * NARROW;
    for (int64_t j = 0; j < n; j++) {
        total[j] = neutral_value(r->f);
    }
    memset(buffer + n, 0, (size_t)(padded - n) * sizeof *buffer);
    for (int64_t i0 = first; i0 < last; i0 += step) {
        for (int64_t j = 0; j < padded; j++) {
            sum[j] = (float)neutral_value(r->f);
        }
        for (int64_t i = i0; i < min_of(i0 + step, last); i++) {
            int64_t offset = base + from * r->inner_x, unused = 0;
            tn__axes_at(&r->goes, i, &offset, &unused);
            int64_t here = r->rest < r->group && i == r->goes.total - 1 ? r->rest * r->inner : n;
            const float *x = row_f32(buffer, desc_at(r->x, offset), r->x->dtype, r->inner_x, here);
            take_row(r->f, sum, x, x == buffer && here == n ? padded : here);
        }
        for (int64_t j = 0; j < n; j++) {
            total[j] = combine_values(r->f, total[j], (double)sum[j]);
        }
    }
}

/* n finished results to y. */
static void store_results(const reduction *r, int64_t y_offset, int64_t stride, const double *total,
                          int64_t n) {
    float rounded[COLUMNS];
    for (int64_t j = 0; j < n; j++) {
        double value = r->f == TN_MEAN ? total[j] / r->count : total[j];
        rounded[j] = (float)value;
        if (r->y->dtype == TN_F64) { *(double *)desc_at(r->y, y_offset + j * stride) = value; }
    }
    if (r->y->dtype != TN_F64) {
        store_f32(desc_at(r->y, y_offset), r->y->dtype, stride, rounded, n);
    }
}

/* One output row or number (position `o` of what is kept), columns from `from`, band `band`. */
static void run_task(const reduction *r, int64_t o, int64_t from, int64_t band) {
    int64_t x = 0, y = 0, first = band * r->height, last = min_of(first + r->height, r->goes.total);
    tn__axes_at(&r->stays, o, &x, &y);
    double total[COLUMNS];
    int64_t n = r->inner_goes ? 1 : min_of(COLUMNS, r->inner - from),
            width = r->inner_goes ? 1 : r->inner;
    if (r->inner_goes) {
        total[0] = fold_rows(r, x, first, last);
    } else {
        fold_columns(r, x, first, last, from, n * r->group, total);
        for (int64_t j = n; j < n * r->group; j++) {
            total[j % n] = combine_values(r->f, total[j % n], total[j]);
        }
    }
    if (r->partial) {
        memcpy(r->partial + (o * r->bands + band) * width + from, total, (size_t)n * sizeof *total);
    } else {
        store_results(r, y + from * r->inner_y, r->inner_goes ? 1 : r->inner_y, total, n);
    }
}

static void combine_bands(const reduction *r) {
    int64_t width = r->inner_goes ? 1 : r->inner;
    for (int64_t o = 0; o < r->stays.total; o++) {
        int64_t x = 0, y = 0;
        tn__axes_at(&r->stays, o, &x, &y);
        for (int64_t from = 0; from < width; from += COLUMNS) {
            int64_t n = min_of(COLUMNS, width - from);
            double total[COLUMNS];
            for (int64_t j = 0; j < n; j++) {
                total[j] = neutral_value(r->f);
            }
            for (int64_t band = 0; band < r->bands; band++) {
                const double *part = r->partial + (o * r->bands + band) * width + from;
                for (int64_t j = 0; j < n; j++) {
                    total[j] = combine_values(r->f, total[j], part[j]);
                }
            }
            store_results(r, y + from * r->inner_y, r->inner_goes ? 1 : r->inner_y, total, n);
        }
    }
}

/* Any or all of contiguous bools, in one result. */
static bool reduce_truth(tn_reduction f, const tn_desc *y, const tn_desc *x) {
    if ((f != TN_ANY && f != TN_ALL) || x->dtype != TN_BOOL || y->dtype != TN_BOOL ||
        count_of(y) != 1 || !is_contiguous(x)) {
        return false;
    }
    const void *found = memchr(x->data, f == TN_ANY ? 1 : 0, (size_t)count_of(x));
    *(bool *)y->data = f == TN_ANY ? found != NULL : found == NULL;
    return true;
}

tn_status TN_CPU(reduce)(tn_context *ctx, tn_reduction f, const tn_desc *y, const tn_desc *x) {
    if (count_of(x) > 0 && reduce_truth(f, y, x)) { return TN_OK; }
    bool known = f == TN_SUM || f == TN_MEAN || f == TN_MAX || f == TN_MIN || f == TN_SUM_SQUARES;
    int64_t count = count_of(x);
    bool wide = f == TN_SUM_SQUARES && y->dtype == TN_F64;
    if (!known || !is_f32_like(x->dtype) || !(wide || y->dtype == x->dtype) || count == 0) {
        return TN_CPU(ref)->reduce(ctx, f, y, x);
    }
    tn_status status = TN_CPU(reduce_short)(ctx, f, y, x);
    if (status != TN_EUNSUPPORTED) { return status; }
    reduction r = {.f = f, .y = y, .x = x, .count = (double)(count / max_of(1, count_of(y)))};
    plan_reduction(&r);
    int64_t pieces = r.inner_goes ? 1 : div_up(r.inner, COLUMNS), results = r.stays.total * pieces;
    int64_t row = r.inner_goes ? min_of(r.inner, CHUNK) : min_of(r.inner * r.group, COLUMNS);
    r.height = r.goes.total;
    if (results < FEW) {
        r.height = max_of(div_up(r.goes.total, MOST_BANDS), max_of(1, CHUNK / row));
        r.height = div_up(r.height, STEP) * STEP <= r.goes.total && !r.inner_goes
                       ? div_up(r.height, STEP) * STEP
                       : r.height;
    }
    r.bands = div_up(r.goes.total, r.height);
    TN__SCRATCH_IF(r.bands > 1, double, partial, ctx,
                   r.stays.total *r.bands *(r.inner_goes ? 1 : r.inner));
    if (r.bands > 1 && !partial) { return TN_ENOMEM; }
    r.partial = partial;
    int64_t tasks = results * r.bands, group = max_of(1, CHUNK / (4 * row * r.height));
    int threads = team_size(div_up(tasks, group), count);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, group)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t band = task / pieces % r.bands;
        run_task(&r, task / pieces / r.bands, task % pieces * COLUMNS, band);
    }
    if (partial) { combine_bands(&r); }
    return TN_OK;
}

tn_status TN_CPU(sum_squares)(tn_context *ctx, const tn_span *spans, int count, double *sums) {
    return tn__sum_squares_by(TN_CPU(reduce), ctx, spans, count, sums);
}
