/* Adagrad (Duchi et al. 2011, jmlr.org/papers/v12/duchi11a.html). The form is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     s = s + g g                                       s = initial_accumulator at first
 *     p = p - lr' g / (sqrt(s) + eps)                   lr' = lr / (1 + (t - 1) lr_decay)
 *
 * State: s as sum, and t, the number of this parameter's steps.
 */
#include "optim/reference.h"

static void adagrad_step(const tn_optim_call *c, tn_step *step) {
    const tn_adagrad_options *o = c->options;
    step->rule = TN_STEP_ADAGRAD;
    step->lr = c->lr / (1.0 + (double)(c->step - 1) * o->lr_decay);
    step->eps = o->eps;
    step->extra = c->step == 1 ? o->initial_accumulator : 0.0;
}

static void adagrad_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                              tn_tensor *const *state) {
    const tn_adagrad_options *o = c->options;
    g = tn__decayed(c, p, g);
    tn_tensor *s = tn_add(state[0], tn_square(g));
    if (c->step == 1) { s = tn_add_scalar(s, o->initial_accumulator); }
    double lr = c->lr / (1.0 + (double)(c->step - 1) * o->lr_decay);
    tn_copy_(p, tn_sub(p, tn_mul_scalar(tn__over_root(g, s, o->eps), lr)));
    tn_copy_(state[0], s);
}

static const tn_field adagrad_fields[] = {
    TN_FIELD(tn_adagrad_options, lr_decay, TN__NOT_NEGATIVE),
    TN_FIELD(tn_adagrad_options, initial_accumulator, TN__NOT_NEGATIVE),
    TN_FIELD(tn_adagrad_options, eps, TN__NOT_NEGATIVE),
    {0},
};

tn_adagrad_options tn_adagrad_defaults(void) {
    return (tn_adagrad_options){.lr = 1e-2, .eps = 1e-10, .from_defaults = true};
}

TN__OPTIM(adagrad, .states = {"sum"}, .step = adagrad_step)
