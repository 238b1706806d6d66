/* Cross-entropy of logits x (n, c) with labels,
 * with label smoothing s (Szegedy et al. 2015, arXiv:1512.00567).
 *
 *     top = max(x)        log_sum = log sum exp(x - top)        log p = x - top - log_sum
 *     loss = -(1 - s) log p[label] - s mean(log p)
 *     dx = dloss (p - (1 - s) [j = label] - s / c)
 *
 * top and log_sum are never added to one number: beside a large top, log_sum would be rounded away.
 * A row whose label is ignore_index has loss 0 and gradient 0;
 * its top and log_sum are still written.
 */
#include "backends/ref/ref.h"

static bool loss_handles(const tn_desc *loss, const tn_desc *top, const tn_desc *log_sum,
                         const tn_desc *x, const tn_desc *label) {
    return is_float(loss->dtype) && is_float(top->dtype) && is_float(log_sum->dtype) &&
           is_float(x->dtype) && is_index(label->dtype);
}

/* Every label in [0, c) or ignored? */
static tn_status check_labels(tn_context *ctx, const tn_desc *label, int64_t c,
                              int64_t ignore_index) {
    for (int64_t i = 0; i < label->size[0]; i++) {
        int64_t value = load_integer(label, i * label->stride[0]);
        if (value != ignore_index && (value < 0 || value >= c)) {
            ctx->bad_position = i;
            ctx->bad_value = value;
            return TN_EINDEX;
        }
    }
    return TN_OK;
}

tn_status tn__ref_cross_entropy(tn_context *ctx, const tn_desc *loss, const tn_desc *top,
                                const tn_desc *log_sum, const tn_desc *x, const tn_desc *label,
                                const tn_cross_entropy_args *args) {
    if (!loss_handles(loss, top, log_sum, x, label)) {
        return TN_EUNSUPPORTED;
    }
    int64_t rows = x->size[0], c = x->size[1];
    tn_status status = check_labels(ctx, label, c, args->ignore_index);
    for (int64_t i = 0; i < rows && status == TN_OK; i++) {
        int64_t row = i * x->stride[0], target = load_integer(label, i * label->stride[0]);
        double most = -INFINITY, sum = 0, below = 0, s = args->label_smoothing, value = 0;
        for (int64_t j = 0; j < c; j++) {
            most = fmax(most, load_float(x, row + j * x->stride[1]));
        }
        for (int64_t j = 0; j < c; j++) {
            double shifted = load_float(x, row + j * x->stride[1]) - most;
            below += shifted;
            sum += exp(shifted);
        }
        if (target != args->ignore_index) {
            value = (1 - s) * (log(sum) - (load_float(x, row + target * x->stride[1]) - most));
            value += s > 0 ? s * (log(sum) - below / (double)c)
                           : 0; /* a logit of -inf must not make 0 * inf */
        }
        store_float(loss, i * loss->stride[0], value);
        store_float(top, i * top->stride[0], most);
        store_float(log_sum, i * log_sum->stride[0], log(sum));
    }
    return status;
}

tn_status tn__ref_cross_entropy_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dloss,
                                         const tn_desc *top, const tn_desc *log_sum,
                                         const tn_desc *x, const tn_desc *label,
                                         const tn_cross_entropy_args *args) {
    if (!is_float(dx->dtype) || !loss_handles(dloss, top, log_sum, x, label)) {
        return TN_EUNSUPPORTED;
    }
    int64_t rows = x->size[0], c = x->size[1];
    tn_status status = check_labels(ctx, label, c, args->ignore_index);
    for (int64_t i = 0; i < rows && status == TN_OK; i++) {
        int64_t target = load_integer(label, i * label->stride[0]);
        double g = load_float(dloss, i * dloss->stride[0]),
               most = load_float(top, i * top->stride[0]),
               log_total = load_float(log_sum, i * log_sum->stride[0]), s = args->label_smoothing;
        for (int64_t j = 0; j < c; j++) {
            double wanted = (j == target ? 1 - s : 0) + s / (double)c;
            double p = exp(load_float(x, i * x->stride[0] + j * x->stride[1]) - most - log_total);
            store_float(dx, i * dx->stride[0] + j * dx->stride[1],
                        target == args->ignore_index ? 0 : g * (p - wanted));
        }
    }
    return status;
}
