/* Optimisers: what one is made of. For those who write their own; optim/adagrad.c shows a small
 * one, optim/sgd.c one with a kernel, optim/adafactor.c one whose state has other shapes.
 *
 * An optimiser is a descriptor: its name, the state that a parameter has, the call of its kernel,
 * and its reference step, the same made of operations. All else (groups, master copies, clipping,
 * what is refused, checkpoints, parts of parameters) is common. One without a kernel is whole: its
 * reference runs. The sign of the gradient as a step:
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
    const tn_entry *entry; /* for the reference: the parameter, its name, and who has the rest of it
                            */
} tn_optim_call;

enum { TN_OPTIM_STATES = 4 }; /* the most that an optimiser keeps of each parameter */

/* What a parameter has of a state. */
typedef enum tn_state_kind {
    TN_STATE_NONE,
    /* shaped as the parameter: a rank that has a part of that has the same part of it */
    TN_STATE_LIKE_PARAM,
    /* of another shape: every rank has all of it, and the reference gives it the same elements
     * on each */
    TN_STATE_WHOLE
} tn_state_kind;

typedef struct tn_optim_method {
    const char *name; /* "adamw" */
    /* {"exp_avg", "exp_avg_sq"}: names in checkpoints, no two alike, nor "step" or "master". Their
     * elements are 0 at first. */
    const char *states[TN_OPTIM_STATES];
    size_t options_size;
    /* What the parameter has of states[i] with these options. *dims, at first its shape, is for
     * TN_STATE_WHOLE. NULL: all that have a name, like the parameter. */
    tn_state_kind (*state_kind)(const void *options, int i, const tn_entry *entry, tn_dims *dims);
    /* What is wrong with options whose fields are in their ranges, written to text; false then.
     * NULL: nothing can be. */
    bool (*check)(const void *options, char *text, size_t size);

    /* Options that all groups share: what checkpoints compare, with ranges; NULL: none. */
    const tn_field *fields;

    /* Steps c->spans with `entry` of the kernel table, TN_KERNEL(adam); without both, or where the
     * table lacks the entry, the reference runs. */
    tn_status (*kernel)(const tn_optim_call *c);
    size_t entry;

    /* The same for one parameter, made of operations. p, the gradient g (scaled already) and the
     * states like it have the parameter's shape, or, where only a part is here, the part's: one
     * dimension, or that of a block. All are of one dtype, f32 or f64: of a bf16 or f16 parameter p
     * is the master copy. Computes first and then writes p and the states with tn_copy_, so that an
     * error changes nothing. Called in a scope, without recording, by every rank that shares the
     * parameter: the part may be empty.
     */
    void (*reference)(const tn_optim_call *c, tn_tensor *p, tn_tensor *g, tn_tensor *const *state);
} tn_optim_method;

/* ---- What depends on more than one element ---------------------------------------------------- *
 *
 * For reference steps. Where the whole parameter is here nothing travels. Where ranks have parts of
 * it (FSDP), each of them calls, in the same order, and the results have the same bits on each.
 * After an error NaN, or inert. */

/* The Euclidean norm of a tensor that is laid out as the parameter. */
TN_API double tn_optim_norm(const tn_optim_call *c, tn_tensor *part);
/* The whole of a tensor that is laid out as the parameter, in the parameter's shape. */
TN_API tn_tensor *tn_optim_gather(const tn_optim_call *c, tn_tensor *part);
/* And back: what of a whole tensor is this rank's. */
TN_API tn_tensor *tn_optim_part(const tn_optim_call *c, tn_tensor *whole);

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
