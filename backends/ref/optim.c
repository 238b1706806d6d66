/* Optimiser steps: Adam (Kingma and Ba 2014, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2017,
 * arXiv:1711.05101), SGD with momentum. Element by element; the arithmetic is PyTorch's.
 *
 * A span's state is f32, or f64 for f64 parameters. With a master copy the step updates the copy,
 * and the parameter is the copy rounded.
 */
#include "backends/ref/steps.h"

/* m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g g
 * p = p - lr m^ / (sqrt(v^) + eps), with m^ = m / (1 - b1^step) and v^ = v / (1 - b2^step) */
typedef struct adam_call {
    const tn_adam_step *step;
    double correct1, correct2;
} adam_call;

static double adam_element(const void *call, const tn_optim_span *span, double p, double g,
                           double *s) {
    const adam_call *c = call;
    const tn_adam_step *step = c->step;
    if (step->decoupled) {
        p -= step->lr * step->weight_decay * p;
    } else {
        g += step->weight_decay * p;
    }
    s[0] = step->beta1 * s[0] + (1 - step->beta1) * g;
    s[1] = step->beta2 * s[1] + (1 - step->beta2) * g * g;
    return p - step->lr * (s[0] / c->correct1) / (sqrt(s[1] / c->correct2) + step->eps);
}

tn_status tn__ref_adam(tn_context *ctx, const tn_optim_span *spans, int count,
                       const tn_adam_step *step) {
    adam_call call = {.step = step,
                      .correct1 = 1 - pow(step->beta1, (double)step->step),
                      .correct2 = 1 - pow(step->beta2, (double)step->step)};
    return step_spans(spans, count, scale_of(step->grad_scale, step->clip), adam_element, &call);
}

/* g = g + wd p
 * buffer = momentum buffer + (1 - dampening) g, in the first step g
 * p = p - lr buffer, with Nesterov p - lr (g + momentum buffer) */
static double sgd_element(const void *call, const tn_optim_span *span, double p, double g,
                          double *s) {
    const tn_sgd_step *step = call;
    g += step->weight_decay * p;
    if (span->state[0]) {
        s[0] = step->first ? g : step->momentum * s[0] + (1 - step->dampening) * g;
        g = step->nesterov ? g + step->momentum * s[0] : s[0];
    }
    return p - step->lr * g;
}

tn_status tn__ref_sgd(tn_context *ctx, const tn_optim_span *spans, int count,
                      const tn_sgd_step *step) {
    return step_spans(spans, count, scale_of(step->grad_scale, step->clip), sgd_element, step);
}
