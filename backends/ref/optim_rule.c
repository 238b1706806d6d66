/* Steps by tn_step_rule, element by element, in PyTorch's arithmetic, and the factor of clipping.
 */
#include "backends/ref/steps.h"

/* RMSPROP has its second state with momentum, its third when it is centred. */
static double rule_element(const void *step, const tn_optim_span *span, double p, double g,
                           double *s) {
    const tn_rule_step *r = step;
    g += r->add * p;
    double m = r->beta1 * s[0] + (1 - r->beta1) * g, d;
    p *= r->shrink;
    switch (r->rule) {
    case TN_STEP_AMSGRAD:
        s[0] = m;
        s[1] = r->beta2 * s[1] + (1 - r->beta2) * g * g;
        s[2] = fmax(s[2], s[1]);
        return p - r->lr * m / (sqrt(s[2]) * r->extra + r->eps);
    case TN_STEP_RMSPROP:
        s[0] = r->beta2 * s[0] + (1 - r->beta2) * g * g;
        s[2] = r->beta2 * s[2] + (1 - r->beta2) * g;
        d = g / (sqrt(s[0] - (span->state[2] ? s[2] * s[2] : 0)) + r->eps);
        s[1] = r->extra * s[1] + d;
        return p - r->lr * (span->state[1] ? s[1] : d);
    case TN_STEP_ADAGRAD:
        s[0] += g * g + r->extra;
        return p - r->lr * g / (sqrt(s[0]) + r->eps);
    case TN_STEP_ADADELTA:
        s[0] = r->beta2 * s[0] + (1 - r->beta2) * g * g;
        d = g * sqrt((s[1] + r->eps) / (s[0] + r->eps));
        s[1] = r->beta2 * s[1] + (1 - r->beta2) * d * d;
        return p - r->lr * d;
    case TN_STEP_ADAMAX:
        s[0] = m;
        s[1] = fmax(r->beta2 * s[1], fabs(g) + r->eps);
        return p - r->lr * m / s[1];
    case TN_STEP_RADAM:
        s[0] = m;
        s[1] = r->beta2 * s[1] + (1 - r->beta2) * g * g;
        return p - r->lr * (r->extra > 0 ? r->extra * m / (sqrt(s[1]) + r->eps) : m);
    default: /* TN_STEP_LION */
        s[0] = r->beta2 * s[0] + (1 - r->beta2) * g;
        return p - r->lr * ((m > 0) - (m < 0));
    }
}

tn_status tn__ref_rule(tn_context *ctx, const tn_optim_span *spans, int count,
                       const tn_rule_step *step) {
    return step_spans(spans, count, scale_of(step->grad_scale, step->clip), rule_element, step);
}

tn_status tn__ref_clip(tn_context *ctx, const double *sums, int count, double most, double *clip) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += sums[i];
    }
    clip[0] = sqrt(sum);
    clip[1] = isfinite(clip[0]) ? fmin(1.0, most / (clip[0] + 1e-6)) : 1.0;
    return TN_OK;
}
