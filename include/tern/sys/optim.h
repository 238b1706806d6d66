/* For writing your own optimiser. optim/adagrad.c is a small one, optim/sgd.c steps by a rule,
 * optim/adafactor.c has state of different shapes.
 *
 * An optimiser is a descriptor: its name, the state of a parameter, the rule of its kernel, and its
 * reference step, the same made of operations. Everything else (groups, master copies, clipping,
 * checks, checkpoints, sharded parameters) is common. The rule is optional: without one the
 * reference runs. An optimiser that steps by the sign of the gradient:
 *
 *     static void sign_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
 *                                tn_tensor *const *state) {
 *         tn_copy_(p, tn_sub(p, tn_mul_scalar(tn_sign(g), c->lr)));
 *     }
 *     static const tn_optim_method sign_method = {.name = "sign", .reference = sign_reference};
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

/* One step of parameters with the same step count, in one group and on one device. */
typedef struct tn_optim_call {
    const void *options;     /* the optimiser's copy of the options it was made with */
    double lr, weight_decay; /* of the group, now */
    double grad_scale;       /* multiplies each gradient as it is read (clipping) */
    int64_t step;            /* of these parameters: 1 for the first; always 1 without states */
    /* for the reference: the parameter, its name, and the ranks with its other parts */
    const tn_entry *entry;
} tn_optim_call;

enum { TN_OPTIM_STATES = 4 }; /* maximum number of states per parameter */

/* What form a state has for a parameter. */
typedef enum tn_state_kind {
    TN_STATE_NONE,
    /* the parameter's shape: a rank that has a part of the parameter has the same part of it */
    TN_STATE_LIKE_PARAM,
    /* another shape: every rank has all of it, and the reference must give it the same elements on
     * each */
    TN_STATE_WHOLE
} tn_state_kind;

typedef struct tn_optim_method {
    const char *name; /* "adamw" */
    /* {"exp_avg", "exp_avg_sq"}: names in checkpoints, all different, and not "step" or "master".
     * Elements start at 0. */
    const char *states[TN_OPTIM_STATES];
    size_t options_size;
    /* The kind of states[i] for a parameter with these options. *dims, initially the parameter's
     * shape, is for TN_STATE_WHOLE. NULL: all named states are like the parameter. */
    tn_state_kind (*state_kind)(const void *options, int i, const tn_entry *entry, tn_dims *dims);
    /* False, with the reason in text, if options are invalid although their fields are in range.
     * NULL: they never are. */
    bool (*check)(const void *options, char *text, size_t size);

    /* Options that all groups share, with ranges, for checkpoints to compare; NULL: none. */
    const tn_field *fields;

    /* The rule (sys/steps.h) and constants of this step, for the kernel table's entry `step`, which
     * makes one pass over all parameters that step alike; NULL: the reference runs. lr, weight
     * decay as a gradient (add, with shrink 1) and clipping are filled in already. */
    void (*step)(const tn_optim_call *c, tn_step *step);

    /* The same for one parameter, made of operations. p, the gradient g (already scaled) and the
     * states like it have the parameter's shape, or, if only a part is here, the part's: one
     * dimension, or a block's. All have one dtype, f32 or f64: for a bf16 or f16 parameter p is the
     * master copy. Must compute first and then write p and the states with tn_copy_, so that an
     * error changes nothing. Called in a scope, without recording, by every rank that shares the
     * parameter: the part may be empty.
     */
    void (*reference)(const tn_optim_call *c, tn_tensor *p, tn_tensor *g, tn_tensor *const *state);
} tn_optim_method;

/* ---- Results that depend on more than one element --------------------------------------------- *
 *
 * For reference steps. If the whole parameter is here nothing is sent. If ranks have parts of it
 * (FSDP), each of them calls, in the same order, and the results have the same bits on each. NaN or
 * inert after an error. */

/* The Euclidean norm of a tensor laid out like the parameter. */
TN_API double tn_optim_norm(const tn_optim_call *c, tn_tensor *part);
/* The whole of a tensor laid out like the parameter, in the parameter's shape. */
TN_API tn_tensor *tn_optim_gather(const tn_optim_call *c, tn_tensor *part);
/* The reverse: this rank's part of a whole tensor. */
TN_API tn_tensor *tn_optim_part(const tn_optim_call *c, tn_tensor *whole);

/* The options of every optimiser. */
typedef struct tn_optim_rates {
    double lr, weight_decay;
    tn_match no_decay; /* selects parameters with weight decay 0; or NULL */
} tn_optim_rates;

/* An optimiser over the parameters of m that require a gradient; NULL after an error. The method
 * must outlive it; the options are copied. */
TN_API tn_optim *tn_optim_new(void *m, const tn_optim_method *method, const void *options,
                              tn_optim_rates rates);

#ifdef __cplusplus
}
#endif
#endif
