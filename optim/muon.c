/* Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the momentum of a matrix, with all
 * its singular values brought near 1. The form is PyTorch's.
 *
 *     m = momentum m + (1 - momentum) g
 *     d = m, or with nesterov momentum m + (1 - momentum) g
 *     X = d / |d|; ns_steps times: A = X X^T, X = a X + (b A + c A A) X
 *     p = p - lr weight_decay p - lr sqrt(max(1, rows / columns)) X
 *
 * A convolution kernel (out, in, …) is a matrix of `out` rows. What is not a matrix (biases,
 * norms), and what the option adamw selects (embeddings, the head), is stepped by AdamW with the
 * betas below.
 *
 * The iteration needs the whole matrix: ranks that have parts of it gather d, and all compute the
 * same. State: m as momentum_buffer, or exp_avg and exp_avg_sq, and the number of this parameter's
 * steps.
 */
#include "optim/reference.h"

/* The quintic iteration of Newton and Schulz on x (n, m), n <= m. */
static tn_tensor *newton_schulz(const tn_muon_options *o, tn_tensor *x) {
    for (int i = 0; i < o->ns_steps; i++) {
        tn_tensor *a = tn_matmul(x, tn_t(x));
        tn_tensor *b = tn_add(tn_mul_scalar(a, o->ns_b), tn_mul_scalar(tn_matmul(a, a), o->ns_c));
        x = tn_add(tn_mul_scalar(x, o->ns_a), tn_matmul(b, x));
    }
    return x;
}

static void step_matrix(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                        tn_tensor *const *state) {
    const tn_muon_options *o = c->options;
    tn_tensor *m = tn__moving(state[0], g, o->momentum);
    tn_tensor *d = tn_optim_gather(c, o->nesterov ? tn__moving(m, g, o->momentum) : m);
    tn_tensor *x = tn_flatten(d, 1, -1);
    double rows = (double)tn_size(x, 0), columns = (double)tn_size(x, 1);
    x = tn_div_scalar(x, fmax(sqrt(tn_item(tn_sum_all(tn_square(x)))), o->eps));
    x = rows > columns ? tn_t(newton_schulz(o, tn_t(x))) : newton_schulz(o, x);
    x = tn_optim_part(c, tn_reshape(tn_contiguous(x), tn_shape(d)));
    double lr = c->lr * sqrt(fmax(1.0, rows / columns));
    tn_copy_(p, tn_sub(tn__shrunk(c, p), tn_mul_scalar(x, lr)));
    tn_copy_(state[0], m);
}

static void step_adamw(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                       tn_tensor *const *state) {
    const tn_muon_options *o = c->options;
    tn_tensor *m = tn__moving(state[1], g, o->adamw_beta1),
              *v = tn__moving(state[2], tn_square(g), o->adamw_beta2);
    tn_tensor *d =
        tn__over_root(tn_div_scalar(m, tn__unbias(o->adamw_beta1, c->step)),
                      tn_div_scalar(v, tn__unbias(o->adamw_beta2, c->step)), o->adamw_eps);
    tn_copy_(p, tn_sub(tn__shrunk(c, p), tn_mul_scalar(d, c->lr)));
    tn_copy_(state[1], m);
    tn_copy_(state[2], v);
}

static void muon_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                           tn_tensor *const *state) {
    state[0] ? step_matrix(c, p, g, state) : step_adamw(c, p, g, state);
}

static tn_state_kind muon_state(const void *options, int i, const tn_entry *entry, tn_dims *dims) {
    const tn_muon_options *o = options;
    bool matrix = entry->layout.whole.ndim >= 2 && !(o->adamw && o->adamw(entry, NULL));
    return matrix == (i == 0) ? TN_STATE_LIKE_PARAM : TN_STATE_NONE;
}

static const tn_field muon_fields[] = {
    TN_FIELD(tn_muon_options, momentum, TN__BETA),
    TN_FIELD(tn_muon_options, nesterov),
    TN_FIELD(tn_muon_options, ns_steps, .most = 99),
    TN_FIELD(tn_muon_options, ns_a),
    TN_FIELD(tn_muon_options, ns_b),
    TN_FIELD(tn_muon_options, ns_c),
    TN_FIELD(tn_muon_options, eps, TN__NOT_NEGATIVE),
    TN_FIELD(tn_muon_options, adamw_beta1, TN__BETA),
    TN_FIELD(tn_muon_options, adamw_beta2, TN__BETA),
    TN_FIELD(tn_muon_options, adamw_eps, TN__NOT_NEGATIVE),
    {0},
};

tn_muon_options tn_muon_defaults(void) {
    return (tn_muon_options){.lr = 1e-3,
                             .weight_decay = 0.1,
                             .momentum = 0.95,
                             .nesterov = true,
                             .ns_a = 3.4445,
                             .ns_b = -4.7750,
                             .ns_c = 2.0315,
                             .eps = 1e-7,
                             .ns_steps = 5,
                             .adamw_beta1 = 0.9,
                             .adamw_beta2 = 0.999,
                             .adamw_eps = 1e-8,
                             .from_defaults = true};
}

TN__OPTIM(muon, .states = {"momentum_buffer", "exp_avg", "exp_avg_sq"}, .state_kind = muon_state)
