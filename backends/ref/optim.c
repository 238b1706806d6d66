/* Steps of optimisers, element by element, by the formulas of backends/steps.h, and the factor of
 * clipping.
 *
 * A span's state is f32, or f64 for f64 parameters. With a master copy the step updates the copy,
 * and the parameter is the copy rounded.
 */
#include "backends/formulas.h"
#include "backends/ref/ref.h"
#include "backends/steps.h"

static bool spans_ok(const tn_optim_span *spans, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_float(spans[i].param_dtype) || !is_float(spans[i].grad_dtype)) { return false; }
    }
    return true;
}

static void step_element(const tn_optim_span *s, int64_t i, double scale, tn_step_rule rule,
                         tn__step_factors_double k) {
    tn_dtype dtype = s->param_dtype == TN_F64 ? TN_F64 : TN_F32;
    double x = s->master ? s->master[i] : load_from(s->param, s->param_dtype, i);
    double g = load_from(s->grad, s->grad_dtype, i) * scale + k.add * x, state[TN_SPAN_STATES];
    for (int n = 0; n < TN_SPAN_STATES; n++) {
        state[n] = s->state[n] ? load_from(s->state[n], dtype, i) : 0;
    }
    double a = state[0], b = state[1], c = state[2];
    x *= k.shrink;
    switch (rule) {
#define CASE(code, name, states, ...) \
    case code:                        \
        __VA_ARGS__;                  \
        break;
        TN_STEP_FORMULAS(CASE, TN_LIBM_D)
#undef CASE
    }
    const double now[TN_SPAN_STATES] = {a, b, c};
    for (int n = 0; n < TN_SPAN_STATES; n++) {
        if (s->state[n]) { store_to(s->state[n], dtype, i, now[n]); }
    }
    if (s->master) { s->master[i] = (float)x; }
    store_to(s->param, s->param_dtype, i, x);
}

tn_status tn__ref_step(tn_context *ctx, const tn_optim_span *spans, int count,
                       const tn_step *step) {
    if (!spans_ok(spans, count)) { return TN_EUNSUPPORTED; }
    tn__step_factors_double k = tn__step_factors_of_double(step);
    double scale = step->clip ? step->grad_scale * *step->clip : step->grad_scale;
    for (int n = 0; n < count; n++) {
        for (int64_t i = 0; i < spans[n].count; i++) {
            step_element(&spans[n], i, scale, step->rule, k);
        }
    }
    return TN_OK;
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
