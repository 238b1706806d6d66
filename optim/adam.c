/* Adam (Kingma and Ba 2014, arXiv:1412.6980), and AdamW, whose decay is decoupled from the gradient
 * (Loshchilov and Hutter 2017, arXiv:1711.05101). The form is PyTorch's.
 *
 *     Adam:  g = gradient + weight_decay p
 *     AdamW: g = gradient, and first p = p - lr weight_decay p
 *     m = beta1 m + (1 - beta1) g
 *     v = beta2 v + (1 - beta2) g g
 *     p = p - lr m' / (sqrt(v') + eps)      with m' = m / (1 - beta1^t), v' = v / (1 - beta2^t)
 *
 * With amsgrad the largest v so far replaces v in the last line (Reddi et al. 2018,
 * arXiv:1904.09237).
 *
 * State: m as exp_avg, v as exp_avg_sq, its largest as max_exp_avg_sq, and t, the number of this
 * parameter's steps.
 */
#include "optim/reference.h"

typedef struct adam_settings {
    tn_adam_options o;
    bool decoupled; /* AdamW */
} adam_settings;

static void adam_step(const tn_optim_call *c, tn_step *step) {
    const adam_settings *s = c->options;
    step->rule = s->o.amsgrad ? TN_STEP_AMSGRAD : TN_STEP_ADAM;
    step->lr = c->lr / tn__unbias(s->o.beta1, c->step);
    step->beta1 = s->o.beta1;
    step->beta2 = s->o.beta2;
    step->eps = s->o.eps;
    step->extra = 1.0 / sqrt(tn__unbias(s->o.beta2, c->step));
    if (s->decoupled) {
        step->add = 0.0;
        step->shrink = 1.0 - c->lr * c->weight_decay;
    }
}

static void adam_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                           tn_tensor *const *state) {
    const adam_settings *s = c->options;
    tn_tensor *start = s->decoupled ? tn__shrunk(c, p) : p;
    g = s->decoupled ? g : tn__decayed(c, p, g);
    tn_tensor *m = tn__moving(state[0], g, s->o.beta1),
              *v = tn__moving(state[1], tn_square(g), s->o.beta2),
              *max = state[2] ? tn_maximum(state[2], v) : v;
    tn_tensor *mean = tn_div_scalar(m, tn__unbias(s->o.beta1, c->step)),
              *square = tn_div_scalar(max, tn__unbias(s->o.beta2, c->step));
    tn_tensor *d = tn__over_root(mean, square, s->o.eps);
    tn_copy_(p, tn_sub(start, tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], m);
    tn_copy_(state[1], v);
    if (state[2]) { tn_copy_(state[2], max); }
}

static const tn_field adam_fields[] = {
    TN_FIELD_AS("beta1", adam_settings, o.beta1, TN__BETA),
    TN_FIELD_AS("beta2", adam_settings, o.beta2, TN__BETA),
    TN_FIELD_AS("eps", adam_settings, o.eps, TN__NOT_NEGATIVE),
    {0},
};

#define ADAM(label, ...)                                                                 \
    {                                                                                    \
        .name = (label), .states = {"exp_avg", "exp_avg_sq", __VA_ARGS__},               \
        .options_size = sizeof(adam_settings), .fields = adam_fields, .step = adam_step, \
        .reference = adam_reference,                                                     \
    }
static const tn_optim_method adam_methods[2][2] = {
    /* [decoupled][amsgrad] */
    {ADAM("adam"), ADAM("adam_amsgrad", "max_exp_avg_sq")},
    {ADAM("adamw"), ADAM("adamw_amsgrad", "max_exp_avg_sq")},
};

tn_adam_options tn_adam_defaults(void) {
    return (tn_adam_options){
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .from_defaults = true};
}

tn_adamw_options tn_adamw_defaults(void) {
    tn_adamw_options options = tn_adam_defaults();
    options.weight_decay = 1e-2;
    return options;
}

static tn_optim *adam_new(void *m, tn_adam_options o, bool decoupled) {
    adam_settings s = {o, decoupled};
    return tn_optim_new(m, &adam_methods[decoupled][o.amsgrad], &s,
                        (tn_optim_rates){o.lr, o.weight_decay, o.no_decay});
}

tn_optim *tn_adam(void *m, tn_adam_options options) {
    tn__options_made(options.from_defaults, "adam", "tn_adam");
    return adam_new(m, options, false);
}

tn_optim *tn_adamw(void *m, tn_adamw_options options) {
    tn__options_made(options.from_defaults, "adamw", "tn_adamw");
    return adam_new(m, options, true);
}
