/* Layer norm (Ba et al. 2016, arXiv:1607.06450) and RMS norm (Zhang and Sennrich 2019,
 * arXiv:1910.07467), with gradients.
 *
 * x is (n, c). With h = (x - mean) rstd for layer norm and h = x rstd for RMS norm, and g = dy w:
 *
 *     y  = h w + b
 *     dw = sum over rows of dy h          db = sum over rows of dy
 *     dx = rstd (g - mean(g) - h mean(g h))        RMS norm has no mean(g)
 */
#include "backends/ref/ref.h"

static double load_at1(const tn_desc *d, int64_t i) {
    return load_float(d, i * d->stride[0]);
}

static double load_at2(const tn_desc *d, int64_t i, int64_t j) {
    return load_float(d, i * d->stride[0] + j * d->stride[1]);
}

/* All operands given are floats. */
static bool all_floats(int count, const tn_desc *const *d) {
    for (int i = 0; i < count; i++) {
        if (d[i] && !is_float(d[i]->dtype)) {
            return false;
        }
    }
    return true;
}

tn_status tn__ref_layer_norm(tn_context *ctx, const tn_desc *y, const tn_desc *mean,
                             const tn_desc *rstd, const tn_desc *x, const tn_desc *w,
                             const tn_desc *b, double eps) {
    (void)ctx;
    if (!all_floats(6, (const tn_desc *[]){y, mean, rstd, x, w, b})) {
        return TN_EUNSUPPORTED;
    }
    int64_t rows = x->size[0], c = x->size[1];
    for (int64_t i = 0; i < rows; i++) {
        double first = c > 0 ? load_at2(x, i, 0) : 0, sum = 0, squares = 0;
        for (int64_t j = 0; j < c; j++) {
            sum += load_at2(x, i, j) - first; /* 0 in a constant row: its mean is then exact */
        }
        double m = first + sum / (double)c;
        for (int64_t j = 0; j < c; j++) {
            squares += (load_at2(x, i, j) - m) * (load_at2(x, i, j) - m);
        }
        double r = 1 / sqrt(squares / (double)c + eps);
        for (int64_t j = 0; j < c; j++) {
            double h = (load_at2(x, i, j) - m) * r;
            store_float(y, i * y->stride[0] + j * y->stride[1],
                        h * (w ? load_at1(w, j) : 1) + (b ? load_at1(b, j) : 0));
        }
        if (mean) {
            store_float(mean, i * mean->stride[0], m);
        }
        if (rstd) {
            store_float(rstd, i * rstd->stride[0], r);
        }
    }
    return TN_OK;
}

tn_status tn__ref_rms_norm(tn_context *ctx, const tn_desc *y, const tn_desc *rstd, const tn_desc *x,
                           const tn_desc *w, double eps) {
    (void)ctx;
    if (!all_floats(4, (const tn_desc *[]){y, rstd, x, w})) {
        return TN_EUNSUPPORTED;
    }
    int64_t rows = x->size[0], c = x->size[1];
    for (int64_t i = 0; i < rows; i++) {
        double squares = 0;
        for (int64_t j = 0; j < c; j++) {
            squares += load_at2(x, i, j) * load_at2(x, i, j);
        }
        double r = 1 / sqrt(squares / (double)c + eps);
        for (int64_t j = 0; j < c; j++) {
            store_float(y, i * y->stride[0] + j * y->stride[1],
                        load_at2(x, i, j) * r * (w ? load_at1(w, j) : 1));
        }
        if (rstd) {
            store_float(rstd, i * rstd->stride[0], r);
        }
    }
    return TN_OK;
}

tn_status tn__ref_add_layer_norm(tn_context *ctx, const tn_desc *s, const tn_desc *y,
                                 const tn_desc *mean, const tn_desc *rstd, const tn_desc *a,
                                 const tn_desc *b, const tn_desc *w, const tn_desc *bias,
                                 double eps) {
    if (!all_floats(8, (const tn_desc *[]){s, y, mean, rstd, a, b, w, bias})) {
        return TN_EUNSUPPORTED;
    }
    for (int64_t i = 0; i < s->size[0]; i++) {
        for (int64_t j = 0; j < s->size[1]; j++) {
            store_float(s, i * s->stride[0] + j * s->stride[1],
                        load_at2(a, i, j) + load_at2(b, i, j));
        }
    }
    return tn__ref_layer_norm(ctx, y, mean, rstd, s, w, bias, eps);
}

/* All backwards: `mean` NULL is RMS norm; dsum is added to dx. */
static void norm_backward(const tn_desc *dx, const tn_desc *dw, const tn_desc *db,
                          const tn_desc *dsum, const tn_desc *dy, const tn_desc *x,
                          const tn_desc *mean, const tn_desc *rstd, const tn_desc *w) {
    int64_t rows = x->size[0], c = x->size[1];
    for (int64_t i = 0; i < rows && dx; i++) {
        double r = load_at1(rstd, i), m = mean ? load_at1(mean, i) : 0, sum_g = 0, sum_gh = 0;
        for (int64_t j = 0; j < c; j++) {
            double g = load_at2(dy, i, j) * (w ? load_at1(w, j) : 1);
            sum_g += g;
            sum_gh += g * (load_at2(x, i, j) - m) * r;
        }
        double mean_g = mean ? sum_g / (double)c : 0, mean_gh = sum_gh / (double)c;
        for (int64_t j = 0; j < c; j++) {
            double g = load_at2(dy, i, j) * (w ? load_at1(w, j) : 1),
                   h = (load_at2(x, i, j) - m) * r;
            store_float(dx, i * dx->stride[0] + j * dx->stride[1],
                        r * (g - mean_g - h * mean_gh) + (dsum ? load_at2(dsum, i, j) : 0));
        }
    }
    for (int64_t j = 0; j < c && (dw || db); j++) {
        double sum_dw = 0, sum_db = 0;
        for (int64_t i = 0; i < rows; i++) {
            sum_dw += load_at2(dy, i, j) * (load_at2(x, i, j) - (mean ? load_at1(mean, i) : 0)) *
                      load_at1(rstd, i);
            sum_db += load_at2(dy, i, j);
        }
        if (dw) {
            store_float(dw, j * dw->stride[0], sum_dw);
        }
        if (db) {
            store_float(db, j * db->stride[0], sum_db);
        }
    }
}

tn_status tn__ref_layer_norm_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dw,
                                      const tn_desc *db, const tn_desc *dy, const tn_desc *x,
                                      const tn_desc *mean, const tn_desc *rstd, const tn_desc *w) {
    (void)ctx;
    if (!all_floats(8, (const tn_desc *[]){dx, dw, db, dy, x, mean, rstd, w})) {
        return TN_EUNSUPPORTED;
    }
    norm_backward(dx, dw, db, NULL, dy, x, mean, rstd, w);
    return TN_OK;
}

tn_status tn__ref_rms_norm_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dw,
                                    const tn_desc *dy, const tn_desc *x, const tn_desc *rstd,
                                    const tn_desc *w) {
    (void)ctx;
    if (!all_floats(6, (const tn_desc *[]){dx, dw, dy, x, rstd, w})) {
        return TN_EUNSUPPORTED;
    }
    norm_backward(dx, dw, NULL, NULL, dy, x, NULL, rstd, w);
    return TN_OK;
}

tn_status tn__ref_add_layer_norm_backward(tn_context *ctx, const tn_desc *ds, const tn_desc *dw,
                                          const tn_desc *db, const tn_desc *dsum, const tn_desc *dy,
                                          const tn_desc *s, const tn_desc *mean,
                                          const tn_desc *rstd, const tn_desc *w) {
    (void)ctx;
    if (!all_floats(9, (const tn_desc *[]){ds, dw, db, dsum, dy, s, mean, rstd, w})) {
        return TN_EUNSUPPORTED;
    }
    norm_backward(ds, dw, db, dsum, dy, s, mean, rstd, w);
    return TN_OK;
}
