/* Adam (Kingma and Ba 2014, arXiv:1412.6980), and AdamW, whose decay is apart from the gradient
 * (Loshchilov and Hutter 2017, arXiv:1711.05101). The form is PyTorch's.
 *
 *     Adam:  g = gradient + weight_decay p
 *     AdamW: g = gradient, and first p = p - lr weight_decay p
 *     m = beta1 m + (1 - beta1) g
 *     v = beta2 v + (1 - beta2) g g
 *     p = p - lr m' / (sqrt(v') + eps)      with m' = m / (1 - beta1^t), v' = v / (1 - beta2^t)
 *
 * State: m as exp_avg, v as exp_avg_sq, and t, the number of this parameter's steps.
 */
#include "core/number.h"
#include "optim/optim.h"

#include <math.h>

typedef struct adam_settings {
    tn_adam_options o;
    bool decoupled; /* AdamW */
} adam_settings;

static tn_status adam_kernel(const tn_optim_call *c) {
    const adam_settings *s = c->options;
    tn_adam_step step = {.lr = c->lr,
                         .beta1 = s->o.beta1,
                         .beta2 = s->o.beta2,
                         .eps = s->o.eps,
                         .weight_decay = c->weight_decay,
                         .decoupled = s->decoupled,
                         .step = c->step,
                         .grad_scale = c->grad_scale};
    return c->kernels->adam(c->ctx, c->spans, c->count, &step);
}

static void adam_twin(const tn_optim_call *c, tn_tensor *p, tn_tensor *g, tn_tensor *const *state) {
    const adam_settings *s = c->options;
    double b1 = s->o.beta1, b2 = s->o.beta2;
    tn_tensor *start = p;
    if (s->decoupled) {
        start = tn_sub(p, tn_mul_scalar(p, c->lr * c->weight_decay));
    } else {
        g = tn_add(g, tn_mul_scalar(p, c->weight_decay));
    }
    tn_tensor *m = tn_add(tn_mul_scalar(state[0], b1), tn_mul_scalar(g, 1.0 - b1)),
              *v = tn_add(tn_mul_scalar(state[1], b2), tn_mul_scalar(tn_square(g), 1.0 - b2));
    tn_tensor *mean = tn_div_scalar(m, 1.0 - pow(b1, (double)c->step)),
              *square = tn_div_scalar(v, 1.0 - pow(b2, (double)c->step));
    tn_tensor *d = tn_div(mean, tn_add_scalar(tn_sqrt(square), s->o.eps));
    tn_copy_(p, tn_sub(start, tn_mul_scalar(d, c->lr)));
    tn_copy_(state[0], m);
    tn_copy_(state[1], v);
}

static int adam_describe(const void *options, char *text, size_t room) {
    const tn_adam_options *o = &((const adam_settings *)options)->o;
    return snprintf(text, room, "beta1 %s, beta2 %s, eps %s", tn__number_of(o->beta1).text,
                    tn__number_of(o->beta2).text, tn__number_of(o->eps).text);
}

static const tn_optim_method adam_method = {
    .name = "adam",
    .states = {"exp_avg", "exp_avg_sq"},
    .options_size = sizeof(adam_settings),
    .describe = adam_describe,
    .kernel = adam_kernel,
    .entry = TN_KERNEL(adam),
    .twin = adam_twin,
};

static const tn_optim_method adamw_method = {
    .name = "adamw",
    .states = {"exp_avg", "exp_avg_sq"},
    .options_size = sizeof(adam_settings),
    .describe = adam_describe,
    .kernel = adam_kernel,
    .entry = TN_KERNEL(adam),
    .twin = adam_twin,
};

/* ---- Making one ------------------------------------------------------------------------------ */

tn_adam_options tn_adam_defaults(void) {
    return (tn_adam_options){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

tn_adamw_options tn_adamw_defaults(void) {
    tn_adamw_options options = tn_adam_defaults();
    options.weight_decay = 1e-2;
    return options;
}

static tn_optim *adam_new(void *m, const tn_optim_method *method, adam_settings s) {
    const tn_adam_options *o = &s.o;
    bool betas = o->beta1 >= 0.0 && o->beta1 < 1.0 && o->beta2 >= 0.0 && o->beta2 < 1.0;
    if (!betas || !tn__not_negative(o->eps)) {
        tn__raise(TN_EVALUE, method->name,
                  "beta1 %g, beta2 %g, eps %g (betas in [0, 1), eps not negative)", o->beta1,
                  o->beta2, o->eps);
        return NULL;
    }
    return tn_optim_new(m, method, &s, (tn_optim_rates){o->lr, o->weight_decay, o->no_decay});
}

tn_optim *tn_adam(void *m, tn_adam_options options) {
    return adam_new(m, &adam_method, (adam_settings){options, .decoupled = false});
}

tn_optim *tn_adamw(void *m, tn_adamw_options options) {
    return adam_new(m, &adamw_method, (adam_settings){options, .decoupled = true});
}
