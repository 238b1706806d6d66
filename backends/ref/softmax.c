/* Softmax and log-softmax over the last dimension, and their gradients. */
#include "backends/ref/ref.h"

tn_status tn__ref_softmax(tn_context *ctx, const tn_desc *y, const tn_desc *x, bool log_form) {
    (void)ctx;
    if (!is_float(y->dtype) || x->dtype != y->dtype) {
        return TN_EUNSUPPORTED;
    }
    tn_desc y_rows = rows_of(y), x_rows = rows_of(x);
    int64_t n = row_length(x), dy = row_stride(y), dx = row_stride(x);
    for (walk w = walk_over(2, &y_rows, &x_rows); w.left > 0; walk_next(&w)) {
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) {
            most = fmax(most, load_float(x, w.at[1] + j * dx));
        }
        for (int64_t j = 0; j < n; j++) {
            /* NaN anywhere, or nothing but -inf: NaN */
            sum += exp(load_float(x, w.at[1] + j * dx) - most);
        }
        for (int64_t j = 0; j < n; j++) {
            double shifted = load_float(x, w.at[1] + j * dx) - most;
            store_float(y, w.at[0] + j * dy, log_form ? shifted - log(sum) : exp(shifted) / sum);
        }
    }
    return TN_OK;
}

/* softmax: y (dy - sum(dy y)); log-softmax: dy - exp(y) sum(dy). */
tn_status tn__ref_softmax_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *y,
                                   const tn_desc *dy, bool log_form) {
    (void)ctx;
    if (!is_float(dx->dtype) || y->dtype != dx->dtype || dy->dtype != dx->dtype) {
        return TN_EUNSUPPORTED;
    }
    tn_desc dx_rows = rows_of(dx), y_rows = rows_of(y), dy_rows = rows_of(dy);
    int64_t n = row_length(dx);
    for (walk w = walk_over(3, &dx_rows, &y_rows, &dy_rows); w.left > 0; walk_next(&w)) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            double g = load_float(dy, w.at[2] + j * row_stride(dy));
            sum += log_form ? g : g * load_float(y, w.at[1] + j * row_stride(y));
        }
        for (int64_t j = 0; j < n; j++) {
            double g = load_float(dy, w.at[2] + j * row_stride(dy)),
                   value = load_float(y, w.at[1] + j * row_stride(y));
            store_float(dx, w.at[0] + j * row_stride(dx),
                        log_form ? g - exp(value) * sum : value * (g - sum));
        }
    }
    return TN_OK;
}
