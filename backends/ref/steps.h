/* What reference steps of optimisers share: the walk over the elements of spans. */
#ifndef TERN_BACKENDS_REF_STEPS_H
#define TERN_BACKENDS_REF_STEPS_H

#include "backends/ref/ref.h"

static inline bool spans_ok(const tn_optim_span *spans, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_float(spans[i].param_dtype) || !is_float(spans[i].grad_dtype)) { return false; }
    }
    return true;
}

static inline tn_dtype state_dtype(const tn_optim_span *span) {
    return span->param_dtype == TN_F64 ? TN_F64 : TN_F32;
}

static inline double load_param(const tn_optim_span *span, int64_t i) {
    return span->master ? span->master[i] : load_from(span->param, span->param_dtype, i);
}

static inline void store_param(const tn_optim_span *span, int64_t i, double value) {
    if (span->master) { span->master[i] = (float)value; }
    store_to(span->param, span->param_dtype, i, value);
}

static inline double scale_of(double grad_scale, const double *clip) {
    return clip ? grad_scale * *clip : grad_scale;
}

/* What a step makes of a parameter's element p and of its states, which are 0 where the span has
 * none; g is scaled. */
typedef double step_element(const void *step, const tn_optim_span *span, double p, double g,
                            double *s);

static inline tn_status step_spans(const tn_optim_span *spans, int count, double scale,
                                   step_element *element, const void *step) {
    if (!spans_ok(spans, count)) { return TN_EUNSUPPORTED; }
    for (int n = 0; n < count; n++) {
        const tn_optim_span *span = &spans[n];
        tn_dtype dtype = state_dtype(span);
        for (int64_t i = 0; i < span->count; i++) {
            double s[TN_SPAN_STATES], g = load_from(span->grad, span->grad_dtype, i) * scale;
            for (int k = 0; k < TN_SPAN_STATES; k++) {
                s[k] = span->state[k] ? load_from(span->state[k], dtype, i) : 0;
            }
            double p = element(step, span, load_param(span, i), g, s);
            for (int k = 0; k < TN_SPAN_STATES; k++) {
                if (span->state[k]) { store_to(span->state[k], dtype, i, s[k]); }
            }
            store_param(span, i, p);
        }
    }
    return TN_OK;
}

#endif
