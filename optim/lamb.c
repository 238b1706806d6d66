/* LAMB (You et al. 2019, arXiv:1904.00962): Adam's direction, scaled to each parameter's norm.
 *
 *     m = beta1 m + (1 - beta1) g
 *     v = beta2 v + (1 - beta2) g g
 *     d = m' / (sqrt(v') + eps) + weight_decay p
 *     p = p - lr |p| / |d| d                       the ratio is 1 where either norm is 0
 *
 * with m' and v' as in Adam. The norms are of the whole parameter, wherever its parts are. State: m
 * as exp_avg, v as exp_avg_sq, and t, the number of this parameter's steps.
 */
#include "optim/reference.h"

static void lamb_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                           tn_tensor *const *state) {
    const tn_lamb_options *o = c->options;
    tn_tensor *m = tn__moving(state[0], g, o->beta1),
              *v = tn__moving(state[1], tn_square(g), o->beta2);
    tn_tensor *d = tn__over_root(tn_div_scalar(m, tn__unbias(o->beta1, c->step)),
                                 tn_div_scalar(v, tn__unbias(o->beta2, c->step)), o->eps);
    d = tn__decayed(c, p, d);
    double length = tn_optim_norm(c, p), step = tn_optim_norm(c, d);
    double trust = length > 0.0 && step > 0.0 ? length / step : 1.0;
    tn_copy_(p, tn_sub(p, tn_mul_scalar(d, c->lr * trust)));
    tn_copy_(state[0], m);
    tn_copy_(state[1], v);
}

static const tn_field lamb_fields[] = {
    TN_FIELD(tn_lamb_options, beta1, TN__BETA),
    TN_FIELD(tn_lamb_options, beta2, TN__BETA),
    TN_FIELD(tn_lamb_options, eps, TN__NOT_NEGATIVE),
    {0},
};

tn_lamb_options tn_lamb_defaults(void) {
    return (tn_lamb_options){.lr = 1e-3,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-6,
                             .weight_decay = 1e-2,
                             .from_defaults = true};
}

TN__OPTIM(lamb, .states = {"exp_avg", "exp_avg_sq"})
