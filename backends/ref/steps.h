/* What reference steps of optimisers share: the elements of a span. */
#ifndef TERN_BACKENDS_REF_STEPS_H
#define TERN_BACKENDS_REF_STEPS_H

#include "backends/ref/ref.h"

static inline bool spans_ok(const tn_optim_span *spans, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_float(spans[i].param_dtype) || !is_float(spans[i].grad_dtype)) {
            return false;
        }
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
    if (span->master) {
        span->master[i] = (float)value;
    }
    store_to(span->param, span->param_dtype, i, value);
}

static inline double scale_of(double grad_scale, const double *clip) {
    return clip ? grad_scale * *clip : grad_scale;
}

#endif
