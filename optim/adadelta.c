/* Adadelta (Zeiler 2012, arXiv:1212.5701). The form is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     v = rho v + (1 - rho) g g
 *     d = g sqrt(u + eps) / sqrt(v + eps)
 *     u = rho u + (1 - rho) d d
 *     p = p - lr d
 *
 * State: v as square_avg, u as acc_delta.
 */
#include "optim/reference.h"

static void adadelta_step(const tn_optim_call *c, tn_step *step) {
    const tn_adadelta_options *o = c->options;
    step->rule = TN_STEP_ADADELTA;
    step->beta2 = o->rho;
    step->eps = o->eps;
}

static void adadelta_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                               tn_tensor *const *state) {
    const tn_adadelta_options *o = c->options;
    g = tn__decayed(c, p, g);
    tn_tensor *v = tn__moving(state[0], tn_square(g), o->rho);
    tn_tensor *ratio =
        tn_div(tn_sqrt(tn_add_scalar(state[1], o->eps)), tn_sqrt(tn_add_scalar(v, o->eps)));
    tn_tensor *d = tn_mul(g, ratio), *u = tn__moving(state[1], tn_square(d), o->rho);
    tn_copy_(p, tn_sub(p, tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], v);
    tn_copy_(state[1], u);
}

static const tn_field adadelta_fields[] = {
    TN_FIELD(tn_adadelta_options, rho, .most = 1),
    TN_FIELD(tn_adadelta_options, eps, TN__NOT_NEGATIVE),
    {0},
};

tn_adadelta_options tn_adadelta_defaults(void) {
    return (tn_adadelta_options){.lr = 1.0, .rho = 0.9, .eps = 1e-6, .from_defaults = true};
}

TN__OPTIM(adadelta, .states = {"square_avg", "acc_delta"}, .step = adadelta_step)
