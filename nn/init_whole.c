/* Initial values that are not one draw for each element: they are made on the host, in f64, and
 * copied to where the tensor is. A tensor of TN_DEFER_INIT gets its elements here.
 *
 * Random numbers are one call of the thread's default generator.
 */
#include "core/error.h"
#include "core/memory.h"
#include "tensor/recipe.h"
#include "tern/nn.h"
#include "tern/sys/tensor.h"

#include <math.h>
#include <stdlib.h>

/* ---- Numbers --------------------------------------------------------------------------------- */

/* In (0, 1), with 53 bits; never 0 or 1. */
static double unit_of(uint32_t high, uint32_t low) {
    uint64_t bits = ((uint64_t)high << 21) ^ (low >> 11);
    return ((double)bits + 0.5) * 0x1p-53;
}

static void draw_uniform(double *x, int64_t n, double low, double high) {
    tn_generator *g = tn_default_generator();
    uint64_t call = g->call++;
    for (int64_t i = 0; i < n; i++) {
        tn_random4 r = tn_philox(g->seed, g->stream, call, (uint64_t)i);
        x[i] = low + (high - low) * unit_of(r.word[0], r.word[1]);
    }
}

/* Box and Muller 1958. */
static void draw_normal(double *x, int64_t n, double std) {
    tn_generator *g = tn_default_generator();
    uint64_t call = g->call++;
    for (int64_t i = 0; i < n; i++) {
        tn_random4 r = tn_philox(g->seed, g->stream, call, (uint64_t)i);
        double radius = sqrt(-2.0 * log(unit_of(r.word[0], r.word[1])));
        x[i] = std * radius * cos(2.0 * M_PI * unit_of(r.word[2], r.word[3]));
    }
}

/* The z whose normal distribution function is p in (0, 1): bisection on erfc, which is exact even
 * far out in the tails. */
static double normal_quantile(double p) {
    double low = -40.0, high = 40.0;
    for (int i = 0; i < 80 && low < high; i++) {
        double z = 0.5 * (low + high);
        *(0.5 * erfc(-z / M_SQRT2) < p ? &low : &high) = z;
    }
    return 0.5 * (low + high);
}

/* ---- From a buffer into a tensor ------------------------------------------------------------- */

/* Zeros for the elements of t; NULL after raising. */
static double *buffer_for(tn_tensor *t, const char *operation) {
    if (!tn__usable_or_deferred(t, operation)) { return NULL; }
    int64_t n = tn_count(t);
    return tn__calloc_for(n > 0 ? (size_t)n : 1, sizeof(double), operation);
}

/* Copies x to t's elements and frees x. */
static void give_buffer(tn_tensor *t, double *x) {
    TN_NO_GRAD;
    TN_SCOPE;
    tn_copy_(t, tn_from_data(x, tn_shape(t), TN_F64));
    free(x);
}

/* False after raising. */
static bool ndim_fits(const tn_tensor *t, int min, int max, const char *operation) {
    if (!tn__usable_or_deferred(t, operation)) { return false; }
    if (tn_ndim(t) < min || tn_ndim(t) > max) {
        return tn__fail(TN_ESHAPE, operation, "the tensor is %s but needs %d to %d dimensions",
                        tn_shape_text(t), min, max);
    }
    return true;
}

/* ---- Initial values -------------------------------------------------------------------------- */

void tn_init_trunc_normal(tn_tensor *t, double mean, double std, double low, double high) {
    if (!(std > 0.0) || !(low < high) || !isfinite(mean)) {
        tn__raise(
            TN_EVALUE, "init_trunc_normal",
            "mean is %g, std %g and the bounds %g and %g (std must be above 0, and the bounds "
            "in order)",
            mean, std, low, high);
        return;
    }
    double *x = buffer_for(t, "init_trunc_normal");
    if (!x) { return; }
    int64_t n = tn_count(t);
    double from = 0.5 * erfc(-(low - mean) / std / M_SQRT2);
    double to = 0.5 * erfc(-(high - mean) / std / M_SQRT2);
    draw_uniform(x, n, from, to);
    for (int64_t i = 0; i < n; i++) {
        x[i] = fmin(fmax(mean + std * normal_quantile(x[i]), low), high);
    }
    give_buffer(t, x);
}

void tn_init_eye(tn_tensor *t) {
    double *x = ndim_fits(t, 2, 2, "init_eye") ? buffer_for(t, "init_eye") : NULL;
    if (!x) { return; }
    int64_t rows = tn_size(t, 0), columns = tn_size(t, 1);
    for (int64_t i = 0; i < rows && i < columns; i++) {
        x[i * columns + i] = 1.0;
    }
    give_buffer(t, x);
}

static double dot_product(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* Gram and Schmidt over the rows of x (count, n), count <= n; each is orthogonalised twice, which
 * gives full precision. It is the Q of a QR whose R has a positive diagonal. */
static void make_orthonormal(double *x, int64_t count, int64_t n) {
    for (int64_t i = 0; i < count; i++) {
        double *row = x + i * n;
        for (int64_t j = 0; j < 2 * i; j++) {
            const double *other = x + (j % i) * n;
            double along = dot_product(row, other, n);
            for (int64_t k = 0; k < n; k++) {
                row[k] -= along * other[k];
            }
        }
        double length = sqrt(dot_product(row, row, n));
        for (int64_t k = 0; k < n; k++) {
            row[k] /= length;
        }
    }
}

void tn_init_orthogonal(tn_tensor *t, double gain) {
    double *x =
        ndim_fits(t, 2, TN_MAX_DIMS, "init_orthogonal") ? buffer_for(t, "init_orthogonal") : NULL;
    if (!x) { return; }
    int64_t n = tn_count(t), rows = tn_size(t, 0), columns = rows > 0 ? n / rows : 0;
    double *q = n > 0 ? buffer_for(t, "init_orthogonal") : NULL;
    if (!q) {
        free(x);
        return;
    }
    bool tall = rows > columns; /* then its columns are orthogonal; they are rows in q */
    int64_t count = tall ? columns : rows, length = tall ? rows : columns;
    draw_normal(q, n, 1.0);
    make_orthonormal(q, count, length);
    for (int64_t i = 0; i < n; i++) {
        x[i] = gain * (tall ? q[i % columns * rows + i / columns] : q[i]);
    }
    free(q);
    give_buffer(t, x);
}
