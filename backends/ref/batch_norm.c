/* Batch norm (Ioffe and Szegedy 2015, arXiv:1502.03167): every channel less its mean, over its
 * deviation, and the gradient.
 *
 * x is (n, c, …). With rstd = 1 / sqrt(var + eps), h = (x - mean) rstd, g = dy w, and sums over n
 * and …, which have m elements:
 *
 *     y  = h w + b
 *     dw = sum dy h          db = sum dy
 *     dx = rstd (g - mean(g) - h mean(g h)), or rstd g where the statistics were given
 */
#include "backends/ref/ref.h"

static bool all_floats(int count, const tn_desc *const *d) {
    for (int i = 0; i < count; i++) {
        if (d[i] && !is_float(d[i]->dtype)) {
            return false;
        }
    }
    return true;
}

/* How many elements a channel has. */
static int64_t channel_count(const tn_desc *x) {
    int64_t count = x->size[0];
    for (int i = 2; i < x->ndim; i++) {
        count *= x->size[i];
    }
    return count;
}

/* Where element i of a channel lies, counted in row-major order. */
static int64_t channel_offset(const tn_desc *x, int64_t channel, int64_t i) {
    int64_t offset = channel * x->stride[1];
    for (int k = x->ndim - 1; k >= 2; k--) {
        offset += i % x->size[k] * x->stride[k];
        i /= x->size[k];
    }
    return offset + i * x->stride[0];
}

static double channel_at(const tn_desc *x, int64_t channel, int64_t i) {
    return load_float(x, channel_offset(x, channel, i));
}

static double vector_at(const tn_desc *d, int64_t i, double otherwise) {
    return d ? load_float(d, i * d->stride[0]) : otherwise;
}

static void channel_moments(const tn_desc *x, int64_t channel, double *mean, double *var) {
    int64_t m = channel_count(x);
    double first = m > 0 ? channel_at(x, channel, 0) : 0, sum = 0, squares = 0;
    for (int64_t i = 0; i < m; i++) {
        sum += channel_at(x, channel, i) - first; /* 0 where all are equal */
    }
    *mean = first + sum / (double)m;
    for (int64_t i = 0; i < m; i++) {
        squares += (channel_at(x, channel, i) - *mean) * (channel_at(x, channel, i) - *mean);
    }
    *var = squares / (double)m;
}

tn_status tn__ref_batch_norm(tn_context *ctx, const tn_desc *y, const tn_desc *mean,
                             const tn_desc *var, const tn_desc *x, const tn_desc *w,
                             const tn_desc *b, double eps, bool given) {
    (void)ctx;
    if (!all_floats(6, (const tn_desc *[]){y, mean, var, x, w, b})) {
        return TN_EUNSUPPORTED;
    }
    for (int64_t c = 0; c < x->size[1]; c++) {
        double m, v;
        if (given) {
            m = vector_at(mean, c, 0);
            v = vector_at(var, c, 0);
        } else {
            channel_moments(x, c, &m, &v);
            store_float(mean, c * mean->stride[0], m);
            store_float(var, c * var->stride[0], v);
        }
        double r = 1 / sqrt(v + eps);
        for (int64_t i = 0; i < channel_count(x); i++) {
            store_float(y, channel_offset(y, c, i),
                        (channel_at(x, c, i) - m) * r * vector_at(w, c, 1) + vector_at(b, c, 0));
        }
    }
    return TN_OK;
}

tn_status tn__ref_batch_norm_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dw,
                                      const tn_desc *db, const tn_desc *dy, const tn_desc *x,
                                      const tn_desc *mean, const tn_desc *var, const tn_desc *w,
                                      double eps, bool given) {
    (void)ctx;
    if (!all_floats(8, (const tn_desc *[]){dx, dw, db, dy, x, mean, var, w})) {
        return TN_EUNSUPPORTED;
    }
    int64_t count = channel_count(x);
    for (int64_t c = 0; c < x->size[1]; c++) {
        double m = vector_at(mean, c, 0), r = 1 / sqrt(vector_at(var, c, 0) + eps);
        double sum = 0, sum_h = 0;
        for (int64_t i = 0; i < count; i++) {
            sum += channel_at(dy, c, i);
            sum_h += channel_at(dy, c, i) * (channel_at(x, c, i) - m) * r;
        }
        double part = given ? 0 : sum / (double)count, part_h = given ? 0 : sum_h / (double)count;
        for (int64_t i = 0; i < count && dx; i++) {
            double h = (channel_at(x, c, i) - m) * r;
            store_float(dx, channel_offset(dx, c, i),
                        vector_at(w, c, 1) * r * (channel_at(dy, c, i) - part - h * part_h));
        }
        if (dw) {
            store_float(dw, c * dw->stride[0], sum_h);
        }
        if (db) {
            store_float(db, c * db->stride[0], sum);
        }
    }
    return TN_OK;
}
