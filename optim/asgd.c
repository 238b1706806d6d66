/* Averaged stochastic gradient descent (Polyak and Juditsky 1992, doi.org/10.1137/0330046). The
 * form is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     p = p (1 - lambd eta) - eta g                                         eta = lr at first
 *     a = a + (p - a) / max(1, t - 1 - t0)
 *     eta = lr / (1 + lambd lr t)^alpha                                     for the next step
 *
 * State: eta (one number), a as ax, and t, the number of this parameter's steps. The result of
 * training is the average; tn_swa keeps one for any optimiser.
 */
#include "optim/reference.h"

static void asgd_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                           tn_tensor *const *state) {
    const tn_asgd_options *o = c->options;
    double t = (double)c->step, share = 1.0 / fmax(1.0, t - 1.0 - o->t0);
    tn_tensor *eta = c->step == 1 ? tn_add_scalar(state[0], c->lr) : state[0];
    g = tn__decayed(c, p, g);
    tn_tensor *next =
        tn_sub(tn_mul(p, tn_rsub_scalar(tn_mul_scalar(eta, o->lambd), 1.0)), tn_mul(g, eta));
    tn_tensor *mean = next;
    if (share < 1.0) { mean = tn_add(state[1], tn_mul_scalar(tn_sub(next, state[1]), share)); }
    tn_copy_(p, next);
    tn_copy_(state[1], mean);
    tn_fill_(state[0], c->lr / pow(1.0 + o->lambd * c->lr * t, o->alpha));
}

static tn_state_kind asgd_state(const void *options, int i, const tn_entry *entry, tn_dims *dims) {
    *dims = TN_DIMS();
    return i == 0 ? TN_STATE_WHOLE : TN_STATE_LIKE_PARAM;
}

static const tn_field asgd_fields[] = {
    TN_FIELD(tn_asgd_options, lambd, TN__NOT_NEGATIVE),
    TN_FIELD(tn_asgd_options, alpha, TN__NOT_NEGATIVE),
    TN_FIELD(tn_asgd_options, t0, TN__NOT_NEGATIVE),
    {0},
};

tn_asgd_options tn_asgd_defaults(void) {
    return (tn_asgd_options){
        .lr = 1e-2, .lambd = 1e-4, .alpha = 0.75, .t0 = 1e6, .from_defaults = true};
}

TN__OPTIM(asgd, .states = {"eta", "ax"}, .state_kind = asgd_state)
