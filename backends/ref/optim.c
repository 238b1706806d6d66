/* Optimiser steps: Adam (Kingma and Ba 2014, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2017,
 * arXiv:1711.05101), SGD with momentum. Element by element; the arithmetic is PyTorch's.
 *
 * A span's state is f32, or f64 for f64 parameters. With a master copy the step updates the copy,
 * and the parameter is the copy rounded.
 */
#include "backends/ref/steps.h"

/* m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g g
 * p = p - lr m^ / (sqrt(v^) + eps), with m^ = m / (1 - b1^step) and v^ = v / (1 - b2^step) */
tn_status tn__ref_adam(tn_context *ctx, const tn_optim_span *spans, int count,
                       const tn_adam_step *step) {
    (void)ctx;
    if (!spans_ok(spans, count)) {
        return TN_EUNSUPPORTED;
    }
    double correct1 = 1 - pow(step->beta1, (double)step->step),
           correct2 = 1 - pow(step->beta2, (double)step->step),
           scale = scale_of(step->grad_scale, step->clip);
    for (int n = 0; n < count; n++) {
        const tn_optim_span *span = &spans[n];
        tn_dtype dtype = state_dtype(span);
        for (int64_t i = 0; i < span->count; i++) {
            double p = load_param(span, i), g = load_from(span->grad, span->grad_dtype, i) * scale;
            if (step->decoupled) {
                p -= step->lr * step->weight_decay * p;
            } else {
                g += step->weight_decay * p;
            }
            double m = step->beta1 * load_from(span->state[0], dtype, i) + (1 - step->beta1) * g;
            double v =
                step->beta2 * load_from(span->state[1], dtype, i) + (1 - step->beta2) * g * g;
            store_to(span->state[0], dtype, i, m);
            store_to(span->state[1], dtype, i, v);
            store_param(span, i, p - step->lr * (m / correct1) / (sqrt(v / correct2) + step->eps));
        }
    }
    return TN_OK;
}

/* g = g + wd p
 * buffer = momentum buffer + (1 - dampening) g, in the first step g
 * p = p - lr buffer, with Nesterov p - lr (g + momentum buffer) */
tn_status tn__ref_sgd(tn_context *ctx, const tn_optim_span *spans, int count,
                      const tn_sgd_step *step) {
    (void)ctx;
    if (!spans_ok(spans, count)) {
        return TN_EUNSUPPORTED;
    }
    double scale = scale_of(step->grad_scale, step->clip);
    for (int n = 0; n < count; n++) {
        const tn_optim_span *span = &spans[n];
        tn_dtype dtype = state_dtype(span);
        for (int64_t i = 0; i < span->count; i++) {
            double p = load_param(span, i), g = load_from(span->grad, span->grad_dtype, i) * scale;
            g += step->weight_decay * p;
            if (span->state[0]) {
                double m = g;
                if (!step->first) {
                    m = step->momentum * load_from(span->state[0], dtype, i) +
                        (1 - step->dampening) * g;
                }
                store_to(span->state[0], dtype, i, m);
                g = step->nesterov ? g + step->momentum * m : m;
            }
            store_param(span, i, p - step->lr * g);
        }
    }
    return TN_OK;
}
