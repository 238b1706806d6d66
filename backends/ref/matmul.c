/* Matrix products, and what is fused with them: three nested loops, sums in double. */
#include "backends/ref/ref.h"

/* sum over t of a[at_a + t step_a] b[at_b + t step_b] */
static double dot_product(const tn_desc *a, int64_t at_a, int64_t step_a, const tn_desc *b,
                          int64_t at_b, int64_t step_b, int64_t n) {
    double sum = 0;
    for (int64_t t = 0; t < n; t++) {
        sum += load_float(a, at_a + t * step_a) * load_float(b, at_b + t * step_b);
    }
    return sum;
}

tn_status tn__ref_matmul(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                         double alpha, double beta) {
    (void)ctx;
    bool widens = y->dtype == TN_F32 && (a->dtype == TN_BF16 || a->dtype == TN_F16);
    if (!is_float(y->dtype) || !(a->dtype == y->dtype || widens) || b->dtype != a->dtype) {
        return TN_EUNSUPPORTED;
    }
    for (walk w = walk_over(1, y); w.left > 0; walk_next(&w)) {
        int64_t n = w.index[0], i = w.index[1], j = w.index[2];
        int64_t row = n * a->stride[0] + i * a->stride[1],
                column = n * b->stride[0] + j * b->stride[2];
        double value =
            alpha * dot_product(a, row, a->stride[2], b, column, b->stride[1], a->size[2]);
        if (beta != 0) {
            value += beta * load_float(y, w.at[0]);
        }
        store_float(y, w.at[0], value);
    }
    return TN_OK;
}

tn_status tn__ref_linear(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                         const tn_desc *b) {
    (void)ctx;
    if (!is_float(y->dtype) || x->dtype != y->dtype || w->dtype != y->dtype ||
        (b && b->dtype != y->dtype)) {
        return TN_EUNSUPPORTED;
    }
    for (walk at = walk_over(1, y); at.left > 0; walk_next(&at)) {
        int64_t i = at.index[0], j = at.index[1];
        double value = dot_product(x, i * x->stride[0], x->stride[1], w, j * w->stride[0],
                                   w->stride[1], x->size[1]);
        store_float(y, at.at[0], value + (b ? load_float(b, j * b->stride[0]) : 0));
    }
    return TN_OK;
}

tn_status tn__ref_linear_q8(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                            const tn_desc *scale, const tn_desc *b) {
    (void)ctx;
    if (!is_float(y->dtype) || x->dtype != y->dtype || w->dtype != TN_I8 ||
        !is_float(scale->dtype) || (b && b->dtype != y->dtype)) {
        return TN_EUNSUPPORTED;
    }
    for (walk at = walk_over(1, y); at.left > 0; walk_next(&at)) {
        int64_t i = at.index[0], j = at.index[1];
        double sum = 0;
        for (int64_t t = 0; t < x->size[1]; t++) {
            sum += load_float(x, i * x->stride[0] + t * x->stride[1]) *
                   (double)load_integer(w, j * w->stride[0] + t * w->stride[1]);
        }
        store_float(y, at.at[0],
                    load_float(scale, j * scale->stride[0]) * sum +
                        (b ? load_float(b, j * b->stride[0]) : 0));
    }
    return TN_OK;
}

static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

tn_status tn__ref_linear_gelu(tn_context *ctx, const tn_desc *y, const tn_desc *pre,
                              const tn_desc *x, const tn_desc *w, const tn_desc *b) {
    (void)ctx;
    if (!is_float(y->dtype) || x->dtype != y->dtype || w->dtype != y->dtype ||
        (b && b->dtype != y->dtype) || (pre && pre->dtype != y->dtype)) {
        return TN_EUNSUPPORTED;
    }
    for (walk at = walk_over(1, y); at.left > 0; walk_next(&at)) {
        int64_t i = at.index[0], j = at.index[1];
        double value = dot_product(x, i * x->stride[0], x->stride[1], w, j * w->stride[0],
                                   w->stride[1], x->size[1]);
        value += b ? load_float(b, j * b->stride[0]) : 0;
        if (pre) {
            store_float(pre, i * pre->stride[0] + j * pre->stride[1], value);
        }
        store_float(y, at.at[0], gelu_tanh(value));
    }
    return TN_OK;
}

tn_status tn__ref_linear_backward_weight(tn_context *ctx, const tn_desc *dw, const tn_desc *db,
                                         const tn_desc *dy, const tn_desc *x, bool accumulate) {
    (void)ctx;
    bool widens = dw->dtype == TN_F32 && (x->dtype == TN_BF16 || x->dtype == TN_F16);
    if (!is_float(dw->dtype) || !(x->dtype == dw->dtype || widens) || dy->dtype != x->dtype ||
        (db && db->dtype != dw->dtype)) {
        return TN_EUNSUPPORTED;
    }
    for (walk at = walk_over(1, dw); at.left > 0; walk_next(&at)) {
        int64_t i = at.index[0], j = at.index[1];
        double value = dot_product(dy, i * dy->stride[1], dy->stride[0], x, j * x->stride[1],
                                   x->stride[0], x->size[0]);
        store_float(dw, at.at[0], value + (accumulate ? load_float(dw, at.at[0]) : 0));
    }
    for (int64_t i = 0; db && i < db->size[0]; i++) {
        double value = 0;
        for (int64_t n = 0; n < dy->size[0]; n++) {
            value += load_float(dy, n * dy->stride[0] + i * dy->stride[1]);
        }
        store_float(db, i * db->stride[0],
                    value + (accumulate ? load_float(db, i * db->stride[0]) : 0));
    }
    return TN_OK;
}
