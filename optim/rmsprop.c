/* RMSprop (Tieleman and Hinton 2012, lecture 6 of Neural networks for machine learning), also
 * centred (Graves 2013, arXiv:1308.0850) and with momentum. The form is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     v = alpha v + (1 - alpha) g g
 *     a = alpha a + (1 - alpha) g           when centered; else a = 0
 *     d = g / (sqrt(v - a a) + eps)
 *     b = momentum b + d                    with momentum; else b = d
 *     p = p - lr b
 *
 * State: v as square_avg, b as momentum_buffer, a as grad_avg.
 */
#include "optim/reference.h"

static void rmsprop_step(const tn_optim_call *c, tn_step *step) {
    const tn_rmsprop_options *o = c->options;
    step->rule = TN_STEP_RMSPROP;
    step->beta1 = o->centered ? o->alpha : 1.0; /* else no mean is subtracted */
    step->beta2 = o->alpha;
    step->eps = o->eps;
    step->extra = o->momentum;
}

static void rmsprop_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                              tn_tensor *const *state) {
    const tn_rmsprop_options *o = c->options;
    g = tn__decayed(c, p, g);
    tn_tensor *v = tn__moving(state[0], tn_square(g), o->alpha), *spread = v, *mean = NULL;
    if (o->centered) {
        mean = tn__moving(state[2], g, o->alpha);
        spread = tn_sub(v, tn_square(mean));
    }
    tn_tensor *d = tn__over_root(g, spread, o->eps);
    if (o->momentum != 0.0) { d = tn_add(tn_mul_scalar(state[1], o->momentum), d); }
    tn_copy_(p, tn_sub(p, tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], v);
    if (o->momentum != 0.0) { tn_copy_(state[1], d); }
    if (o->centered) { tn_copy_(state[2], mean); }
}

static tn_state_kind rmsprop_state(const void *options, int i, const tn_entry *entry,
                                   tn_dims *dims) {
    const tn_rmsprop_options *o = options;
    bool has = i == 0 || (i == 1 && o->momentum != 0.0) || (i == 2 && o->centered);
    return has ? TN_STATE_LIKE_PARAM : TN_STATE_NONE;
}

static const tn_field rmsprop_fields[] = {
    TN_FIELD(tn_rmsprop_options, alpha, TN__NOT_NEGATIVE),
    TN_FIELD(tn_rmsprop_options, eps, TN__NOT_NEGATIVE),
    TN_FIELD(tn_rmsprop_options, momentum, TN__NOT_NEGATIVE),
    TN_FIELD(tn_rmsprop_options, centered),
    {0},
};

tn_rmsprop_options tn_rmsprop_defaults(void) {
    return (tn_rmsprop_options){.lr = 1e-2, .alpha = 0.99, .eps = 1e-8, .from_defaults = true};
}

TN__OPTIM(rmsprop, .states = {"square_avg", "momentum_buffer", "grad_avg"},
          .state_kind = rmsprop_state, .step = rmsprop_step)
