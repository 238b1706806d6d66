/* matmul and linear: three nested loops, sums in double. */
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
        if (beta != 0) { value += beta * load_float(y, w.at[0]); }
        store_float(y, w.at[0], value);
    }
    return TN_OK;
}

tn_status tn__ref_linear(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                         const tn_desc *b) {
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
