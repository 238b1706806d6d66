/* Optimisers: what one is made of. For those who write their own; optim/sgd.c and optim/adam.c show
 * two.
 *
 * An optimiser is a descriptor: its name, the state that a parameter has, the call of its kernel,
 * and the same step made of operations, its twin. All else (groups, master copies, clipping, what
 * is refused, checkpoints) is common. One without a kernel is whole: its twin runs. The sign of the
 * gradient as a step:
 *
 *     static void sign_twin(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
 *                           tn_tensor *const *state) {
 *         tn_copy_(p, tn_sub(p, tn_mul_scalar(tn_sign(g), c->lr)));
 *     }
 *     static const tn_optim_method sign_method = {.name = "sign", .twin = sign_twin};
 *
 *     tn_optim *opt = tn_optim_new(&net, &sign_method, NULL, (tn_optim_rates){.lr = 1e-3});
 */
#ifndef TERN_SYS_OPTIM_H
#define TERN_SYS_OPTIM_H

#include "../optim.h"
#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One step of parameters that are at the same count, in one group and on one device. */
typedef struct tn_optim_call {
    const void *options;       /* the optimiser's own copy of what it was made with */
    double lr, weight_decay;   /* of the group, now */
    double grad_scale;         /* multiplies each gradient as it is read (clipping) */
    int64_t step;              /* of these parameters: 1 for the first; without states always 1 */
    const tn_backend *kernels; /* the rest is for the kernel */
    tn_context *ctx;
    const tn_optim_span *spans;
    int count;
} tn_optim_call;

typedef struct tn_optim_method {
    const char *name; /* "adamw" */
    /* {"exp_avg", "exp_avg_sq"}: names in checkpoints, no two alike, nor "step" or "master" */
    const char *states[TN_OPTIM_STATES];
    size_t options_size;
    /* How many of the states there are with these options; NULL: all that have a name. */
    int (*state_count)(const void *options);

    /* The options that all groups share, as text, for checkpoints: as tn_module.describe, "beta1
     * 0.9, beta2 0.999". May be NULL. */
    int (*describe)(const void *options, char *text, size_t room);

    /* Steps c->spans with `entry` of the kernel table, TN_KERNEL(adam); without both, or where the
     * table lacks the entry, the twin runs. */
    tn_status (*kernel)(const tn_optim_call *c);
    size_t entry;

    /* The same for one parameter, made of operations. p, the gradient g (scaled already) and the
     * states are 1-dimensional, of one dtype, f32 or f64: of a bf16 or f16 parameter p is the
     * master copy. Computes first and then writes p and the states with tn_copy_, so that an error
     * changes nothing. Called in a scope, without recording. */
    void (*twin)(const tn_optim_call *c, tn_tensor *p, tn_tensor *g, tn_tensor *const *state);
} tn_optim_method;

/* What every optimiser has. */
typedef struct tn_optim_rates {
    double lr, weight_decay;
    tn_match no_decay; /* NULL, or which parameters have weight decay 0 */
} tn_optim_rates;

/* An optimiser over the parameters of m that require a gradient; NULL after an error. The method
 * must live as long; the options are copied. */
TN_API tn_optim *tn_optim_new(void *m, const tn_optim_method *method, const void *options,
                              tn_optim_rates rates);

#ifdef __cplusplus
}
#endif
#endif
