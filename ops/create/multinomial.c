/* Indices drawn by weight: for each row of weights, `count` of its indices. One draw of this
 * thread's default generator per call. No gradient.
 *
 * With replacement: where a uniform number falls among the cumulative weights. Without: those with
 * the smallest E / w, E exponentially distributed, which is the same as drawing one after another
 * (Efraimidis, Spirakis 2006, "Weighted random sampling with a reservoir").
 */
#include "backends/random.h"
#include "core/memory.h"
#include "ops/op.h"

#include <math.h>
#include <stdlib.h>

/* Counts a row's weights above 0, and sums them; -1 if one is not a weight. */
static int64_t weigh_row(const double *w, int64_t n, double *sum) {
    int64_t above = 0;
    *sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (!(w[i] >= 0.0) || isinf(w[i])) { return -1; }
        above += w[i] > 0.0;
        *sum += w[i];
    }
    return *sum > 0.0 && isfinite(*sum) ? above : 0;
}

static double uniform_at(tn_random_key key, uint64_t i) {
    tn_random4 r = tn_philox(key.seed, key.stream, key.call, i);
    return tn__uniform53(tn__word64(r.word[0], r.word[1]));
}

/* sums: cumulative weights. The first i where sums[i] is above u times the total.
 */
static int64_t place_of(const double *sums, int64_t n, double u) {
    double target = u * sums[n - 1];
    int64_t low = 0, high = n - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sums[middle] > target) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static tn_tensor *draw_again(double *w, int64_t rows, int64_t n, int64_t count, tn_random_key key) {
    tn_tensor *y = tn_empty_on((tn_device){TN_CPU, 0}, TN_DIMS(rows, count), TN_I64);
    int64_t *place = tn_is_inert(y) ? NULL : tn_data_mut(y);
    for (int64_t r = 0; place && r < rows; r++, w += n) {
        for (int64_t i = 1; i < n; i++) {
            w[i] += w[i - 1];
        }
        for (int64_t i = 0; i < count; i++) {
            *place++ = place_of(w, n, uniform_at(key, (uint64_t)(r * count + i)));
        }
    }
    return y;
}

static tn_tensor *draw_once(double *w, int64_t rows, int64_t n, int64_t count, tn_random_key key) {
    for (int64_t i = 0; i < rows * n; i++) {
        w[i] = w[i] > 0.0 ? -log1p(-uniform_at(key, (uint64_t)i)) / w[i] : INFINITY;
    }
    tn_tensor *time = tn_to(tn_from_data(w, TN_DIMS(rows, n), TN_F64), (tn_device){TN_CPU, 0});
    tn_tensor *first;
    tn_topk(time, count, 1, false, &first);
    return first;
}

/* Why these rows cannot be drawn from; NULL if they can. */
static const char *why_not(const double *w, int64_t rows, int64_t n, int64_t count, bool again) {
    for (int64_t r = 0; r < rows && count > 0; r++) {
        double sum;
        int64_t above = weigh_row(w + r * n, n, &sum);
        if (above < 0) { return "weights must be finite and not negative"; }
        if (above == 0) { return "a row has no weight above 0, or their sum is not a number"; }
        if (!again && above < count) { return "a row has fewer weights above 0 than are drawn"; }
    }
    return count < 0 ? "the count is negative" : NULL;
}

tn_tensor *tn_multinomial(tn_tensor *weights, int64_t count, bool replacement) {
    if (!tn__usable(weights, "multinomial")) { return tn_inert(); }
    tn_dims dims = weights->dims;
    if (dims.ndim < 1 || dims.ndim > 2 || !tn_dtype_is_float(weights->dtype)) {
        return tn__refused(TN_ESHAPE, "multinomial",
                           "weights are %s, %s (one row or rows of floats)", tn_shape_text(weights),
                           tn_dtype_name(weights->dtype));
    }
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t n = dims.size[dims.ndim - 1], rows = dims.ndim == 2 ? dims.size[0] : 1;
    double *w = tn__malloc_for((size_t)(rows * n) * sizeof *w, "multinomial");
    if (!w) { return tn_inert(); }
    tn_tensor *y = tn_inert();
    if (tn_copy_out(tn_cast(weights, TN_F64), w) == TN_OK) {
        const char *why = why_not(w, rows, n, count, replacement);
        if (why) {
            tn__raise(TN_EVALUE, "multinomial", "%lld are drawn of %s (%s)", (long long)count,
                      tn_shape_text(weights), why);
        } else {
            tn_random_key key = tn__draw_key(tn_default_generator());
            y = (replacement ? draw_again : draw_once)(w, rows, n, count, key);
            dims.size[dims.ndim - 1] = count;
            y = tn_to(tn_reshape(y, dims), tn_device_of(weights));
        }
    }
    free(w);
    return tn_return(y);
}
