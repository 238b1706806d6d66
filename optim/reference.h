/* Building blocks of the optimisers: of their reference steps (decay, moving averages), of checks
 * of options, and TN__OPTIM, which makes the descriptor and the public function. */
#ifndef TERN_OPTIM_REFERENCE_H
#define TERN_OPTIM_REFERENCE_H

#include "optim/optim.h"

#include <float.h>
#include <math.h>

/* Decay as a gradient: g + weight_decay p. */
static inline tn_tensor *tn__decayed(const tn_optim_call *c, tn_tensor *p, tn_tensor *g) {
    return c->weight_decay != 0.0 ? tn_add(g, tn_mul_scalar(p, c->weight_decay)) : g;
}

/* Decoupled decay: p (1 - lr weight_decay). */
static inline tn_tensor *tn__shrunk(const tn_optim_call *c, tn_tensor *p) {
    return c->weight_decay != 0.0 ? tn_sub(p, tn_mul_scalar(p, c->lr * c->weight_decay)) : p;
}

/* A moving average: beta old + (1 - beta) x. */
static inline tn_tensor *tn__moving(tn_tensor *old, tn_tensor *x, double beta) {
    return tn_add(tn_mul_scalar(old, beta), tn_mul_scalar(x, 1.0 - beta));
}

/* 1 - beta^t: the divisor for a moving average that began with 0. */
static inline double tn__unbias(double beta, int64_t t) {
    return 1.0 - pow(beta, (double)t);
}

/* m / (sqrt(v) + eps) */
static inline tn_tensor *tn__over_root(tn_tensor *m, tn_tensor *v, double eps) {
    return tn_div(m, tn_add_scalar(tn_sqrt(v), eps));
}

/* Defines tn_METHOD from METHOD_fields and METHOD_reference; then come the other members of its
 * tn_optim_method:
 *
 *     TN__OPTIM(lion, .states = {"exp_avg"}, .step = lion_step)
 */
#define TN__OPTIM(method, ...)                                                   \
    static const tn_optim_method method##_method = {                             \
        .name = #method,                                                         \
        .options_size = sizeof(tn_##method##_options),                           \
        .fields = method##_fields,                                               \
        .reference = method##_reference,                                         \
        __VA_ARGS__,                                                             \
    };                                                                           \
    tn_optim *tn_##method(void *m, tn_##method##_options o) {                    \
        tn__options_made(o.from_defaults, #method, "tn_" #method);               \
        return tn_optim_new(m, &method##_method, &o,                             \
                            (tn_optim_rates){o.lr, o.weight_decay, o.no_decay}); \
    }

/* Ranges of option fields (tn_field.least, .most). */
#define TN__BETA .most = 0x1.fffffffffffffp-1 /* in [0, 1) */
#define TN__NOT_NEGATIVE .most = DBL_MAX

#endif
