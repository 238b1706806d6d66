/* Cross-entropy of logits x (n, c) with labels, with label smoothing s (Szegedy et al. 2015,
 * arXiv:1512.00567).
 *
 *     lse = log sum exp(x)        loss = (1 - s) (lse - x[label]) + s (lse - mean(x))
 *     dx = dloss (exp(x - lse) - (1 - s) [j = label] - s / c)
 *
 * A row whose label is ignore_index has loss 0 and gradient 0; its lse is still written.
 */
#include "backends/ref/ref.h"

static bool handles(const tn_desc *a, const tn_desc *b, const tn_desc *x, const tn_desc *label) {
    return is_float(a->dtype) && is_float(b->dtype) && is_float(x->dtype) && is_index(label->dtype);
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

tn_status tn__ref_cross_entropy(tn_context *ctx, const tn_desc *loss, const tn_desc *lse,
                                const tn_desc *x, const tn_desc *label,
                                const tn_cross_entropy_args *args) {
    if (!handles(loss, lse, x, label)) {
        return TN_EUNSUPPORTED;
    }
    int64_t rows = x->size[0], c = x->size[1];
    tn_status status = check_labels(ctx, label, c, args->ignore_index);
    for (int64_t i = 0; i < rows && status == TN_OK; i++) {
        int64_t row = i * x->stride[0], target = load_integer(label, i * label->stride[0]);
        double most = -INFINITY, sum = 0, total = 0, s = args->label_smoothing;
        for (int64_t j = 0; j < c; j++) {
            most = fmax(most, load(x, row + j * x->stride[1]));
        }
        for (int64_t j = 0; j < c; j++) {
            total += load(x, row + j * x->stride[1]);
            sum += exp(load(x, row + j * x->stride[1]) - most);
        }
        double log_sum = most + log(sum), value = 0;
        if (target != args->ignore_index) {
            value = (1 - s) * (log_sum - load(x, row + target * x->stride[1]));
            value += s > 0 ? s * (log_sum - total / (double)c)
                           : 0; /* a logit of -inf must not make 0 * inf */
        }
        store(loss, i * loss->stride[0], value);
        store(lse, i * lse->stride[0], log_sum);
    }
    return status;
}

tn_status tn__ref_cross_entropy_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dloss,
                                         const tn_desc *lse, const tn_desc *x, const tn_desc *label,
                                         const tn_cross_entropy_args *args) {
    if (!is_float(dx->dtype) || !handles(dloss, lse, x, label)) {
        return TN_EUNSUPPORTED;
    }
    int64_t rows = x->size[0], c = x->size[1];
    tn_status status = check_labels(ctx, label, c, args->ignore_index);
    for (int64_t i = 0; i < rows && status == TN_OK; i++) {
        int64_t target = load_integer(label, i * label->stride[0]);
        double g = load(dloss, i * dloss->stride[0]), log_sum = load(lse, i * lse->stride[0]),
               s = args->label_smoothing;
        for (int64_t j = 0; j < c; j++) {
            double wanted = (j == target ? 1 - s : 0) + s / (double)c;
            double p = exp(load(x, i * x->stride[0] + j * x->stride[1]) - log_sum);
            store(dx, i * dx->stride[0] + j * dx->stride[1],
                  target == args->ignore_index ? 0 : g * (p - wanted));
        }
    }
    return status;
}
