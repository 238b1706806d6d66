/* block: one transformer layer, normalised before each half (Radford et al. 2019)
 *
 *     x = x + attn(ln_1(x))
 *     x = x + mlp(ln_2(x))                     x (B, T, C)
 */
#include "nn/attention.h"
#include "nn/call.h"
#include "nn/layer.h"
#include "tern/models.h"

static tn_values block_forward(tn_module *self, tn_values in, void *context) {
    tn_block *m = (tn_block *)self;
    tn__sequences s;
    if (!tn__sequences_of(self, in, &s)) { return tn__no_values(); }
    tn_values normed = in; /* mask and positions, if any, are passed on to attention */
    normed.v[0] = tn_call(&m->ln_1, s.x);
    tn_tensor *x, *attended = tn_call_values(&m->attn, normed, context).v[0];
    tn_drop(normed.v[0]);
    tn_tensor *y = tn_call(&m->mlp, tn__add_norm(&m->ln_2, s.x, attended, &x));
    return tn_values_of(tn__add_branch(x, y), NULL);
}

tn_block_options tn_block_defaults(void) {
    return (tn_block_options){.heads = 1,
                              .causal = true,
                              .bias = true,
                              .activation = TN_ACT_GELU_TANH,
                              .dtype = TN_F32,
                              .from_defaults = true};
}

void tn_block_init(tn_block *m, int64_t width, tn_block_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "block", NULL, block_forward) ||
        !tn__layer_options(m, options.from_defaults, "tn_block")) {
        return;
    }
    tn_norm_options norm = TN_WITH(tn_norm, .bias = options.bias, .dtype = options.dtype);
    tn_self_attention_options attention =
        TN_WITH(tn_self_attention, .heads = options.heads, .causal = options.causal,
                .bias = options.bias, .dropout = options.dropout, .dtype = options.dtype);
    tn_mlp_options mlp =
        TN_WITH(tn_mlp, .hidden = options.hidden, .bias = options.bias, .dropout = options.dropout,
                .activation = options.activation, .dtype = options.dtype);
    tn_layer_norm_init(&m->ln_1, width, norm);
    tn_self_attention_init(&m->attn, width, attention);
    tn_layer_norm_init(&m->ln_2, width, norm);
    tn_mlp_init(&m->mlp, width, mlp);
    tn_module_add(m, "ln_1", &m->ln_1);
    tn_module_add(m, "attn", &m->attn);
    tn_module_add(m, "ln_2", &m->ln_2);
    tn_module_add(m, "mlp", &m->mlp);
}
