/* NAdam, Adam with Nesterov's look ahead (Dozat 2016,
 * openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ). The form is PyTorch's.
 *
 *     g = gradient + weight_decay p
 *     mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2)
 *     k = k mu(t)                                                      k = 1 at first
 *     m = beta1 m + (1 - beta1) g
 *     v = beta2 v + (1 - beta2) g g
 *     p = p - lr ((1 - mu(t)) / (1 - k) g + mu(t + 1) / (1 - k mu(t + 1)) m) / (sqrt(v') + eps)
 *
 * with v' = v / (1 - beta2^t). State: m as exp_avg, v as exp_avg_sq, k as mu_product (one number),
 * and t, the number of this parameter's steps.
 */
#include "optim/reference.h"

static double momentum_at(const tn_nadam_options *o, int64_t t) {
    return o->beta1 * (1.0 - 0.5 * pow(0.96, (double)t * o->momentum_decay));
}

static void nadam_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                            tn_tensor *const *state) {
    const tn_nadam_options *o = c->options;
    double now = momentum_at(o, c->step), next = momentum_at(o, c->step + 1);
    g = tn__decayed(c, p, g);
    tn_tensor *k = c->step == 1 ? tn_add_scalar(state[2], now) : tn_mul_scalar(state[2], now);
    tn_tensor *m = tn__moving(state[0], g, o->beta1),
              *v = tn__moving(state[1], tn_square(g), o->beta2);
    tn_tensor *ahead =
        tn_add(tn_mul(g, tn_rdiv_scalar(tn_rsub_scalar(k, 1.0), 1.0 - now)),
               tn_mul(m, tn_rdiv_scalar(tn_rsub_scalar(tn_mul_scalar(k, next), 1.0), next)));
    tn_tensor *d = tn__over_root(ahead, tn_div_scalar(v, tn__unbias(o->beta2, c->step)), o->eps);
    tn_copy_(p, tn_sub(p, tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], m);
    tn_copy_(state[1], v);
    tn_copy_(state[2], k);
}

static tn_state_kind nadam_state(const void *options, int i, const tn_entry *entry, tn_dims *dims) {
    *dims = TN_DIMS();
    return i == 2 ? TN_STATE_WHOLE : TN_STATE_LIKE_PARAM;
}

static const tn_field nadam_fields[] = {
    TN_FIELD(tn_nadam_options, beta1, TN__BETA),
    TN_FIELD(tn_nadam_options, beta2, TN__BETA),
    TN_FIELD(tn_nadam_options, eps, TN__NOT_NEGATIVE),
    TN_FIELD(tn_nadam_options, momentum_decay, TN__NOT_NEGATIVE),
    {0},
};

tn_nadam_options tn_nadam_defaults(void) {
    return (tn_nadam_options){.lr = 2e-3,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .eps = 1e-8,
                              .momentum_decay = 4e-3,
                              .from_defaults = true};
}

TN__OPTIM(nadam, .states = {"exp_avg", "exp_avg_sq", "mu_product"}, .state_kind = nadam_state)
