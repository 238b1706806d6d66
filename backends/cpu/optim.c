/* Adam and SGD over many spans in one parallel region: all spans together are cut into pieces of
 * CHUNK elements. f64 is left to ref; spans of f32, bf16 and f16 (with or without a master copy)
 * are computed in f32.
 */
#include "backends/cpu/convert.h"

/* The factors of an Adam step, each rounded once. */
typedef struct adam_factors {
    float beta1, beta2, rest1, rest2, eps, decay, add, scale, size, root;
} adam_factors;

static adam_factors adam_prepare(const tn_adam_step *s) {
    double correct1 = 1 - pow(s->beta1, (double)s->step),
           correct2 = 1 - pow(s->beta2, (double)s->step);
    return (adam_factors){
        .beta1 = (float)s->beta1,
        .beta2 = (float)s->beta2,
        .rest1 = (float)(1 - s->beta1),
        .rest2 = (float)(1 - s->beta2),
        .eps = (float)s->eps,
        .decay = s->decoupled ? (float)(1 - s->lr * s->weight_decay) : 1,
        .add = s->decoupled ? 0 : (float)s->weight_decay,
        .scale = (float)(s->clip ? s->grad_scale * *s->clip : s->grad_scale),
        .size = (float)(s->lr / correct1),
        .root = (float)(1 / sqrt(correct2)),
    };
}

static void adam_run(float *restrict p, const float *restrict grad, float *restrict m,
                     float *restrict v, int64_t n, const adam_factors *f) {
    adam_factors k = *f;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = p[i], g = grad[i] * k.scale;
        g += k.add * x;
        x *= k.decay;
        float m1 = k.beta1 * m[i] + k.rest1 * g, v1 = k.beta2 * v[i] + k.rest2 * (g * g);
        m[i] = m1;
        v[i] = v1;
        p[i] = x - k.size * m1 / (sqrtf(v1) * k.root + k.eps);
    }
}

typedef struct sgd_factors {
    float lr, momentum, rest, decay, scale;
    bool nesterov, first;
} sgd_factors;

static void sgd_run(float *restrict p, const float *restrict grad, float *restrict m, int64_t n,
                    const sgd_factors *f) {
    sgd_factors k = *f;
    float keep = k.first ? 0 : k.momentum, add = k.first ? 1 : k.rest;
    if (!m) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            p[i] -= k.lr * (grad[i] * k.scale + k.decay * p[i]);
        }
        return;
    }
    if (k.first) { /* the buffer is not read: it may hold anything */
        memset(m, 0, (size_t)n * sizeof *m);
    }
    float ahead = k.nesterov ? k.momentum : 1, now = k.nesterov ? 1 : 0;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.scale + k.decay * p[i], m1 = keep * m[i] + add * g;
        m[i] = m1;
        p[i] -= k.lr * (now * g + ahead * m1);
    }
}

/* The factors of the step to take; the other is NULL. */
typedef struct steps {
    const adam_factors *adam;
    const sgd_factors *sgd;
} steps;

/* Elements [from, from + n) of a span, n <= TILE if anything has to be converted. */
static void run_piece(const tn_optim_span *s, int64_t from, int64_t n, const steps *how) {
    float params[TILE], grads[TILE];
    bool held = s->master != NULL, plain = s->param_dtype == TN_F32;
    char *param = (char *)s->param + from * (int64_t)size_of(s->param_dtype);
    const char *grad = (const char *)s->grad + from * (int64_t)size_of(s->grad_dtype);
    float *p = held ? s->master + from : plain ? (float *)param : params;
    if (p == params) { load_f32(params, param, s->param_dtype, 1, n); }
    const float *g = row_f32(grads, grad, s->grad_dtype, 1, n);
    float *m = s->state[0] ? s->state[0] + from : NULL;
    if (how->adam) {
        adam_run(p, g, m, s->state[1] + from, n, how->adam);
    } else {
        sgd_run(p, g, m, n, how->sgd);
    }
    if (held || !plain) { store_f32(param, s->param_dtype, 1, p, n); }
}

static void run_chunk(const tn_optim_span *s, int64_t from, int64_t n, const steps *how) {
    bool whole = s->param_dtype == TN_F32 && s->grad_dtype == TN_F32 && !s->master;
    int64_t piece = whole ? n : TILE;
    for (int64_t i = 0; i < n; i += piece) {
        run_piece(s, from + i, min_of(piece, n - i), how);
    }
}

/* All chunks of all spans, in parallel. Each thread walks the spans once for its own range of
 * chunks. */
static void run_spans(const tn_optim_span *spans, int count, const steps *how) {
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
                run_chunk(&spans[i], c * CHUNK, min_of(CHUNK, spans[i].count - c * CHUNK), how);
            }
            seen += own;
        }
    }
}

static bool all_f32_like(const tn_optim_span *spans, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_f32_like(spans[i].param_dtype) || !is_f32_like(spans[i].grad_dtype)) {
            return false;
        }
    }
    return true;
}

tn_status TN_CPU(adam)(tn_context *ctx, const tn_optim_span *spans, int count,
                       const tn_adam_step *step) {
    if (!all_f32_like(spans, count)) { return TN_CPU(ref)->adam(ctx, spans, count, step); }
    adam_factors f = adam_prepare(step);
    run_spans(spans, count, &(steps){.adam = &f});
    return TN_OK;
}

tn_status TN_CPU(sgd)(tn_context *ctx, const tn_optim_span *spans, int count,
                      const tn_sgd_step *step) {
    if (!all_f32_like(spans, count)) { return TN_CPU(ref)->sgd(ctx, spans, count, step); }
    sgd_factors f = {(float)step->lr,
                     (float)step->momentum,
                     (float)(1 - step->dampening),
                     (float)step->weight_decay,
                     (float)(step->clip ? step->grad_scale * *step->clip : step->grad_scale),
                     step->nesterov,
                     step->first};
    run_spans(spans, count, &(steps){.sgd = &f});
    return TN_OK;
}
