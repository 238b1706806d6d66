/* Reductions: sum, mean, max, min, sum of squares, any, all; argmax. */
#include "backends/desc.h"
#include "backends/ref/ref.h"

/* The part of x that one element of y reduces: only the reduced dimensions are left (size 1
 * elsewhere). */
static tn_desc reduced_part(const tn_desc *y, const tn_desc *x) {
    tn_desc part = *x;
    for (int i = 0; i < x->ndim; i++) {
        part.size[i] = y->size[i] == 1 ? x->size[i] : 1;
    }
    return part;
}

/* Whether a replaces the largest (with `smallest`, the smallest) value so far. NaN beats all and is
 * never beaten. */
static bool takes_place(double a, double best, bool smallest) {
    if (isnan(best)) { return false; }
    return isnan(a) || (smallest ? a < best : a > best);
}

/* A sum whose error does not grow with its length:
 * what each addition loses is summed separately (Neumaier 1974). */
typedef struct exact {
    double sum, lost;
} exact;

static void exact_add(exact *e, double v) {
    double sum = e->sum + v;
    e->lost += fabs(e->sum) >= fabs(v) ? (e->sum - sum) + v : (v - sum) + e->sum;
    e->sum = sum;
}

static double exact_total(exact e) { /* with infinities, `lost` is NaN */
    return isfinite(e.sum) ? e.sum + e.lost : e.sum;
}

static double reduce_floats(tn_reduction f, const tn_desc *x, const tn_desc *part, int64_t first) {
    exact sum = {0, 0};
    double best = f == TN_MIN ? INFINITY : -INFINITY;
    int64_t count = 0;
    for (walk w = walk_over(1, part); w.left > 0; walk_next(&w), count++) {
        double v = load_float(x, first + w.at[0]);
        exact_add(&sum, f == TN_SUM_SQUARES ? v * v : v);
        if (takes_place(v, best, f == TN_MIN)) { best = v; }
    }
    if (f == TN_MAX || f == TN_MIN) { return best; }
    /* no elements: 0 / 0 is NaN */
    return f == TN_MEAN ? exact_total(sum) / (double)count : exact_total(sum);
}

static int64_t reduce_integers(tn_reduction f, const tn_desc *x, const tn_desc *part,
                               int64_t first) {
    uint64_t sum = 0; /* unsigned, so that overflow wraps */
    int64_t most = INT64_MIN, least = INT64_MAX;
    bool any = false, all = true;
    for (walk w = walk_over(1, part); w.left > 0; walk_next(&w)) {
        int64_t v = load_integer(x, first + w.at[0]);
        sum += (uint64_t)v;
        most = v > most ? v : most;
        least = v < least ? v : least;
        any |= v != 0;
        all &= v != 0;
    }
    switch (f) {
    case TN_MAX:
        return most;
    case TN_MIN:
        return least;
    case TN_ANY:
        return any;
    case TN_ALL:
        return all;
    default:
        return (int64_t)sum;
    }
}

static bool reduce_handles(tn_reduction f, tn_dtype y, tn_dtype x) {
    switch (f) {
    case TN_SUM:
        return (is_float(x) && is_float(y)) || (is_integer(x) && y == TN_I64);
    case TN_MEAN:
    case TN_SUM_SQUARES:
        return is_float(x) && is_float(y);
    case TN_MAX:
    case TN_MIN:
        return (is_float(x) || is_integer(x)) && y == x;
    case TN_ANY:
    case TN_ALL:
        return x == TN_BOOL && y == TN_BOOL;
    default:
        return false;
    }
}

tn_status tn__ref_reduce(tn_context *ctx, tn_reduction f, const tn_desc *y, const tn_desc *x) {
    if (!reduce_handles(f, y->dtype, x->dtype)) { return TN_EUNSUPPORTED; }
    tn_desc part = reduced_part(y, x);
    for (walk w = walk_over(2, y, x); w.left > 0; walk_next(&w)) {
        if (is_float(x->dtype)) {
            store_float(y, w.at[0], reduce_floats(f, x, &part, w.at[1]));
        } else {
            store_integer(y, w.at[0], reduce_integers(f, x, &part, w.at[1]));
        }
    }
    return TN_OK;
}

tn_status tn__ref_argmax(tn_context *ctx, const tn_desc *y, const tn_desc *x, int dim) {
    if (y->dtype != TN_I64 || x->dtype == TN_BOOL) { return TN_EUNSUPPORTED; }
    for (walk w = walk_over(2, y, x); w.left > 0; walk_next(&w)) {
        int64_t best = 0;
        for (int64_t j = 1; j < x->size[dim]; j++) {
            int64_t here = w.at[1] + j * x->stride[dim], there = w.at[1] + best * x->stride[dim];
            if (is_float(x->dtype) ? takes_place(load_float(x, here), load_float(x, there), false)
                                   : load_integer(x, here) > load_integer(x, there)) {
                best = j;
            }
        }
        store_integer(y, w.at[0], best);
    }
    return TN_OK;
}

tn_status tn__ref_sum_squares(tn_context *ctx, const tn_span *spans, int count, double *sums) {
    return tn__sum_squares_by(tn__ref_reduce, ctx, spans, count, sums);
}
