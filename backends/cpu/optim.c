/* Steps of optimisers over many spans in one parallel region: all spans together are cut into
 * pieces of CHUNK elements. f64 is left to ref; spans of f32, bf16 and f16 (with or without a
 * master copy) are computed in f32.
 */
#include "backends/cpu/convert.h"
#include "backends/formulas.h"
#include "backends/steps.h"

typedef struct step_call {
    tn_step_rule rule;
    int states; /* that the rule has */
    float scale;
    tn__step_factors_float factors;
} step_call;

/* A rule's loop: name_run. */
#define LOOP(code, name, states, ...)                                                          \
    static void name##_run(float *restrict p, const float *restrict grad, float *const *state, \
                           int64_t n, const step_call *call) {                                 \
        tn__step_factors_float k = call->factors;                                              \
        float *restrict s0 = state[0], *restrict s1 = state[1], *restrict s2 = state[2];       \
        float scale = call->scale;                                                             \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                  \
            float x = p[i], g = grad[i] * scale + k.add * x;                                   \
            float a = states > 0 ? s0[i] : 0, b = states > 1 ? s1[i] : 0,                      \
                  c = states > 2 ? s2[i] : 0;                                                  \
            x *= k.shrink;                                                                     \
            __VA_ARGS__;                                                                       \
            p[i] = x;                                                                          \
            if (states > 0) { s0[i] = a; }                                                     \
            if (states > 1) { s1[i] = b; }                                                     \
            if (states > 2) { s2[i] = c; }                                                     \
        }                                                                                      \
    }
TN_STEP_FORMULAS(LOOP, TN_LIBM_F)
#undef LOOP

/* Elements [from, from + n) of a span; n <= TILE if anything has to be converted, or the rule has a
 * state that the span lacks. */
static void run_piece(const tn_optim_span *s, int64_t from, int64_t n, const step_call *call) {
    float params[TILE], grads[TILE], absent[TN_SPAN_STATES][TILE], *state[TN_SPAN_STATES] = {NULL};
    bool held = s->master != NULL, plain = s->param_dtype == TN_F32;
    char *param = (char *)s->param + from * (int64_t)size_of(s->param_dtype);
    const char *grad = (const char *)s->grad + from * (int64_t)size_of(s->grad_dtype);
    float *p = held ? s->master + from : plain ? (float *)param : params;
    if (p == params) { load_f32(params, param, s->param_dtype, 1, n); }
    const float *g = row_f32(grads, grad, s->grad_dtype, 1, n);
    for (int i = 0; i < call->states; i++) {
        state[i] = s->state[i] ? s->state[i] + from : absent[i];
        if (!s->state[i]) { memset(absent[i], 0, (size_t)n * sizeof(float)); }
    }
    switch (call->rule) {
#define CASE(code, name, states, ...)     \
    case code:                            \
        name##_run(p, g, state, n, call); \
        break;
        TN_STEP_FORMULAS(CASE, )
#undef CASE
    }
    if (held || !plain) { store_f32(param, s->param_dtype, 1, p, n); }
}

static void run_chunk(const tn_optim_span *s, int64_t from, int64_t n, const step_call *call) {
    bool whole = s->param_dtype == TN_F32 && s->grad_dtype == TN_F32 && !s->master;
    for (int i = 0; i < call->states; i++) {
        whole = whole && s->state[i];
    }
    int64_t piece = whole ? n : TILE;
    for (int64_t i = 0; i < n; i += piece) {
        run_piece(s, from + i, min_of(piece, n - i), call);
    }
}

/* All chunks of all spans, in parallel. Each thread walks the spans once for its own range of
 * chunks. */
static void run_spans(const tn_optim_span *spans, int count, const step_call *call) {
    int64_t chunks = 0, work = 0;
    for (int i = 0; i < count; i++) {
        chunks += div_up(spans[i].count, CHUNK);
        work += spans[i].count;
    }
    int threads = team_size(chunks, work);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int part = 0; part < threads; part++) {
        int64_t first = chunks * part / threads, last = chunks * (part + 1) / threads, seen = 0;
        for (int i = 0; i < count && seen < last; i++) {
            int64_t own = div_up(spans[i].count, CHUNK);
            for (int64_t c = max_of(0, first - seen); c < min_of(own, last - seen); c++) {
                run_chunk(&spans[i], c * CHUNK, min_of(CHUNK, spans[i].count - c * CHUNK), call);
            }
            seen += own;
        }
    }
}

static bool spans_f32_like(const tn_optim_span *spans, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_f32_like(spans[i].param_dtype) || !is_f32_like(spans[i].grad_dtype)) {
            return false;
        }
    }
    return true;
}

tn_status TN_CPU(step)(tn_context *ctx, const tn_optim_span *spans, int count,
                       const tn_step *step) {
    static const int states[] = {
#define ROW(code, name, states, ...) [code] = states,
        TN_STEP_FORMULAS(ROW, )
#undef ROW
    };
    if (!spans_f32_like(spans, count)) { return TN_CPU(ref)->step(ctx, spans, count, step); }
    double scale = step->clip ? step->grad_scale * *step->clip : step->grad_scale;
    step_call call = {step->rule, states[step->rule], (float)scale,
                      tn__step_factors_of_float(step)};
    run_spans(spans, count, &call);
    return TN_OK;
}
