/* Stochastic gradient descent, with momentum (Polyak 1964; as in Sutskever et al. 2013,
 * proceedings.mlr.press/v28/sutskever13.html) and Nesterov's look ahead. The form is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     m = g at the first step, then momentum m + (1 - dampening) g
 *     d = m; with nesterov g + momentum m; without momentum g
 *     p = p - lr d
 *
 * State: m as momentum_buffer, when there is momentum.
 */
#include "optim/reference.h"

#include <math.h>

static tn_state_kind sgd_state(const void *options, int i, const tn_entry *entry, tn_dims *dims) {
    const tn_sgd_options *o = options;
    return o->momentum != 0.0 ? TN_STATE_LIKE_PARAM : TN_STATE_NONE;
}

static void sgd_step(const tn_optim_call *c, tn_step *step) {
    const tn_sgd_options *o = c->options;
    step->rule = o->momentum != 0.0 ? TN_STEP_MOMENTUM : TN_STEP_SGD;
    step->beta1 = c->step == 1 ? 0.0 : o->momentum; /* the first buffer is the gradient */
    step->beta2 = c->step == 1 ? 0.0 : o->dampening;
    step->extra = o->nesterov ? o->momentum : 0.0;
}

static void sgd_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                          tn_tensor *const *state) {
    const tn_sgd_options *o = c->options;
    g = tn_add(g, tn_mul_scalar(p, c->weight_decay));
    if (!state[0]) {
        tn_copy_(p, tn_sub(p, tn_mul_scalar(g, c->lr)));
        return;
    }
    tn_tensor *m = g;
    if (c->step > 1) {
        m = tn_add(tn_mul_scalar(state[0], o->momentum), tn_mul_scalar(g, 1.0 - o->dampening));
    }
    tn_tensor *d = o->nesterov ? tn_add(g, tn_mul_scalar(m, o->momentum)) : m;
    tn_copy_(p, tn_sub(p, tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], m);
}

static const tn_field sgd_fields[] = {
    TN_FIELD(tn_sgd_options, momentum, TN__NOT_NEGATIVE),
    TN_FIELD(tn_sgd_options, dampening),
    TN_FIELD(tn_sgd_options, nesterov),
    {0},
};

static bool sgd_check(const void *options, char *text, size_t size) {
    const tn_sgd_options *o = options;
    snprintf(text, size, "nesterov needs momentum (it is %g) and no dampening (it is %g)",
             o->momentum, o->dampening);
    return !o->nesterov || (o->momentum != 0.0 && o->dampening == 0.0);
}

tn_sgd_options tn_sgd_defaults(void) {
    return (tn_sgd_options){.lr = 1e-3, .from_defaults = true};
}

TN__OPTIM(sgd, .states = {"momentum_buffer"}, .state_kind = sgd_state, .check = sgd_check,
          .step = sgd_step)
