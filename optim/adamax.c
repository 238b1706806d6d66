/* Adamax, Adam with the infinity norm (Kingma and Ba 2014, arXiv:1412.6980, section 7.1). The form
 * is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     m = beta1 m + (1 - beta1) g
 *     u = max(beta2 u, |g| + eps)
 *     p = p - lr / (1 - beta1^t) m / u
 *
 * State: m as exp_avg, u as exp_inf, and t, the number of this parameter's steps.
 */
#include "optim/reference.h"

static void adamax_step(const tn_optim_call *c, tn_step *step) {
    const tn_adamax_options *o = c->options;
    step->rule = TN_STEP_ADAMAX;
    step->lr = c->lr / tn__unbias(o->beta1, c->step);
    step->beta1 = o->beta1;
    step->beta2 = o->beta2;
    step->eps = o->eps;
}

static void adamax_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                             tn_tensor *const *state) {
    const tn_adamax_options *o = c->options;
    g = tn__decayed(c, p, g);
    tn_tensor *m = tn__moving(state[0], g, o->beta1);
    tn_tensor *u = tn_maximum(tn_mul_scalar(state[1], o->beta2), tn_add_scalar(tn_abs(g), o->eps));
    double lr = c->lr / tn__unbias(o->beta1, c->step);
    tn_copy_(p, tn_sub(p, tn_mul_scalar(tn_div(m, u), lr)));
    tn_copy_(state[0], m);
    tn_copy_(state[1], u);
}

static const tn_field adamax_fields[] = {
    TN_FIELD(tn_adamax_options, beta1, TN__BETA),
    TN_FIELD(tn_adamax_options, beta2, TN__BETA),
    TN_FIELD(tn_adamax_options, eps, TN__NOT_NEGATIVE),
    {0},
};

tn_adamax_options tn_adamax_defaults(void) {
    return (tn_adamax_options){
        .lr = 2e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .from_defaults = true};
}

TN__OPTIM(adamax, .states = {"exp_avg", "exp_inf"}, .step = adamax_step)
