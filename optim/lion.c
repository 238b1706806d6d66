/* Lion (Chen et al. 2023, arXiv:2302.06675): the sign of a momentum, with decoupled decay.
 *
 *     d = sign(beta1 m + (1 - beta1) g)
 *     p = p - lr (d + weight_decay p)
 *     m = beta2 m + (1 - beta2) g
 *
 * State: m as exp_avg.
 */
#include "optim/reference.h"

static void lion_step(const tn_optim_call *c, tn_step *step) {
    const tn_lion_options *o = c->options;
    step->rule = TN_STEP_LION;
    step->beta1 = o->beta1;
    step->beta2 = o->beta2;
    step->add = 0.0;
    step->shrink = 1.0 - c->lr * c->weight_decay;
}

static void lion_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                           tn_tensor *const *state) {
    const tn_lion_options *o = c->options;
    tn_tensor *d = tn_sign(tn__moving(state[0], g, o->beta1));
    tn_tensor *m = tn__moving(state[0], g, o->beta2);
    tn_copy_(p, tn_sub(tn__shrunk(c, p), tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], m);
}

static const tn_field lion_fields[] = {
    TN_FIELD(tn_lion_options, beta1, TN__BETA),
    TN_FIELD(tn_lion_options, beta2, TN__BETA),
    {0},
};

tn_lion_options tn_lion_defaults(void) {
    return (tn_lion_options){.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .from_defaults = true};
}

TN__OPTIM(lion, .states = {"exp_avg"}, .step = lion_step)
