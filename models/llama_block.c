/* llama_block: one layer of a modern transformer (Touvron et al. 2023, arXiv:2302.13971)
 *
 *     x = x + self_attn(input_layernorm(x))
 *     x = x + mlp(post_attention_layernorm(x))        x (B, T, C)
 *
 * Its norms are RMS norms despite their names, which are Hugging Face's.
 */
#include "nn/attention.h"
#include "nn/call.h"
#include "nn/layer.h"
#include "tern/models.h"

static tn_values llama_block_forward(tn_module *self, tn_values in, void *context) {
    tn_llama_block *m = (tn_llama_block *)self;
    tn__sequences s;
    if (!tn__sequences_of(self, in, &s)) { return tn__no_values(); }
    tn_values normed = in; /* mask and positions, if any, are passed on to attention */
    normed.v[0] = tn_call(&m->input_layernorm, s.x);
    tn_tensor *x, *attended = tn_call_values(&m->self_attn, normed, context).v[0];
    tn_drop(normed.v[0]);
    tn_tensor *y = tn__add_rms_norm(&m->post_attention_layernorm, s.x, attended, &x);
    return tn_values_of(tn__add_gated_mlp(&m->mlp, y, x), NULL);
}

tn_llama_block_options tn_llama_block_defaults(void) {
    return (tn_llama_block_options){.heads = 1,
                                    .rotary = tn_rotary_defaults(),
                                    .eps = 1e-5,
                                    .dtype = TN_F32,
                                    .from_defaults = true};
}

void tn_llama_block_init(tn_llama_block *m, int64_t width, int64_t hidden,
                         tn_llama_block_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "llama_block", NULL, llama_block_forward) ||
        !tn__layer_options(m, options.from_defaults, "tn_llama_block")) {
        return;
    }
    tn_norm_options norm = TN_WITH(tn_norm, .eps = options.eps, .dtype = options.dtype);
    tn_grouped_attention_options attention =
        TN_WITH(tn_grouped_attention, .heads = options.heads, .kv_heads = options.kv_heads,
                .head_width = options.head_width, .rotary = options.rotary, .dtype = options.dtype);
    tn_rms_norm_init(&m->input_layernorm, width, norm);
    tn_grouped_attention_init(&m->self_attn, width, attention);
    tn_rms_norm_init(&m->post_attention_layernorm, width, norm);
    tn_gated_mlp_init(&m->mlp, width, hidden, TN_WITH(tn_gated_mlp, .dtype = options.dtype));
    tn_module_add(m, "self_attn", &m->self_attn);
    tn_module_add(m, "mlp", &m->mlp);
    tn_module_add(m, "input_layernorm", &m->input_layernorm);
    tn_module_add(m, "post_attention_layernorm", &m->post_attention_layernorm);
}
