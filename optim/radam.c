/* RAdam, Adam that waits until it knows the variance (Liu et al. 2019, arXiv:1908.03265). The form
 * is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     m = beta1 m + (1 - beta1) g
 *     v = beta2 v + (1 - beta2) g g
 *     rho = rho' - 2 t beta2^t / (1 - beta2^t)                 rho' = 2 / (1 - beta2) - 1
 *     p = p - lr m' r sqrt(1 - beta2^t) / (sqrt(v) + eps)      when rho > 5
 *     p = p - lr m'                                            before
 *
 * with m' = m / (1 - beta1^t) and r^2 = (rho - 4) (rho - 2) rho' / ((rho' - 4) (rho' - 2) rho).
 * State: m as exp_avg, v as exp_avg_sq, and t, the number of this parameter's steps.
 */
#include "optim/reference.h"

/* r sqrt(1 - beta2^t), or 0 while the variance is unknown. */
static double rectified_by(const tn_radam_options *o, int64_t t) {
    double unbias = tn__unbias(o->beta2, t), max = 2.0 / (1.0 - o->beta2) - 1.0;
    double rho = max - 2.0 * (double)t * (1.0 - unbias) / unbias;
    double r = (rho - 4.0) * (rho - 2.0) * max / ((max - 4.0) * (max - 2.0) * rho);
    return rho > 5.0 ? sqrt(r * unbias) : 0.0;
}

static void radam_step(const tn_optim_call *c, tn_step *step) {
    const tn_radam_options *o = c->options;
    step->rule = TN_STEP_RADAM;
    step->lr = c->lr / tn__unbias(o->beta1, c->step);
    step->beta1 = o->beta1;
    step->beta2 = o->beta2;
    step->eps = o->eps;
    step->extra = rectified_by(o, c->step);
}

static void radam_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                            tn_tensor *const *state) {
    const tn_radam_options *o = c->options;
    g = tn__decayed(c, p, g);
    tn_tensor *m = tn__moving(state[0], g, o->beta1),
              *v = tn__moving(state[1], tn_square(g), o->beta2);
    tn_tensor *d = tn_div_scalar(m, tn__unbias(o->beta1, c->step));
    double r = rectified_by(o, c->step);
    if (r > 0.0) { d = tn_mul_scalar(tn__over_root(d, v, o->eps), r); }
    tn_copy_(p, tn_sub(p, tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], m);
    tn_copy_(state[1], v);
}

static const tn_field radam_fields[] = {
    TN_FIELD(tn_radam_options, beta1, TN__BETA),
    TN_FIELD(tn_radam_options, beta2, TN__BETA),
    TN_FIELD(tn_radam_options, eps, TN__NOT_NEGATIVE),
    {0},
};

tn_radam_options tn_radam_defaults(void) {
    return (tn_radam_options){
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .from_defaults = true};
}

TN__OPTIM(radam, .states = {"exp_avg", "exp_avg_sq"}, .step = radam_step)
