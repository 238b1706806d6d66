/* llama: a decoder-only transformer of the present generation      Touvron et al. 2023,
 * arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783
 *
 *     x = embed_tokens[tokens]                        (B, T, C)
 *     x = layers.0(x), layers.1(x), …
 *     logits = lm_head(norm(x))                       (B, T, vocab)
 *
 * What has changed since GPT-2: positions turn queries and keys instead of being added to x, heads
 * share keys and values, the MLP is gated, norms neither centre nor shift, nothing has a bias. The
 * parameters have Hugging Face's names, without the "model." in front of most.
 *
 * Read next: models/llama_block.c, nn/grouped_attention.c.
 */
#include "models/language.h"

#include "core/memory.h"
#include "nn/cache.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Forward --------------------------------------------------------------------------------- */

/* The layers, one after the other. What one gave goes as soon as the next has read it. */
static tn_tensor *call_layers(tn_llama *m, tn_tensor *x, const tn__lm_inputs *inputs) {
    for (int i = 0; i < m->options.layers; i++) {
        tn_values in = {3, {x, inputs->mask, inputs->positions}};
        tn_tensor *y = tn_call_values(&m->layers[i], in, NULL).v[0];
        if (y != x) { /* a hook may hand the input on */
            tn_drop(x);
        }
        x = y;
    }
    return x;
}

static tn_values llama_forward(tn_module *self, tn_values in, void *context) {
    tn_llama *m = (tn_llama *)self;
    const tn__lm_context *call = context;
    const tn_kv_cache *cache = &m->layers[0].self_attn.cache;
    int64_t start = tn__cache_start(cache);
    tn__lm_inputs inputs;
    if (!tn__lm_inputs_of(self, in, start, m->options.context, &inputs)) {
        return tn__no_values();
    }
    tn_tensor *x = call_layers(m, tn_call(&m->embed_tokens, inputs.tokens), &inputs);
    x = tn_call(&m->norm, x);
    if (call && call->last_only) {
        x = tn_narrow(x, 1, inputs.length - 1, 1);
    }
    tn_tensor *logits = tn_call(&m->lm_head, x);
    if (tn__cache_open(cache) && tn_is_inert(logits)) { /* some layers are ahead of others */
        tn__cache_restore(m, start);
    }
    return tn_values_of(logits, NULL);
}

/* ---- Building -------------------------------------------------------------------------------- */

tn_llama_options tn_llama_defaults(void) {
    tn_rotary_options rotary = {.theta = 500000.0,
                                .factor = 32.0,
                                .low_freq_factor = 1.0,
                                .high_freq_factor = 4.0,
                                .original_context = 8192};
    return (tn_llama_options){.vocab = 128256,
                              .context = 131072,
                              .layers = 16,
                              .heads = 32,
                              .kv_heads = 8,
                              .width = 2048,
                              .hidden = 8192,
                              .rotary = rotary,
                              .eps = 1e-5,
                              .tied = true,
                              .dtype = TN_F32};
}

/* Matrices: normal; the weights of norms stay 1. */
static bool init_entry(const tn_entry *entry, void *user) {
    (void)user;
    if (entry->layout.whole.ndim >= 2) {
        tn_init_normal(*entry->field, 0.0, 0.02);
    }
    return true;
}

/* The heads, theta and eps are what the layers say of themselves. */
static int llama_describe(const tn_module *self, char *text, size_t room) {
    const tn_llama_options *o = &((const tn_llama *)self)->options;
    return snprintf(text, room, "vocab %lld, layers %d, width %lld, tied %d; context %lld",
                    (long long)o->vocab, o->layers, (long long)o->width, o->tied,
                    (long long)o->context);
}

static void llama_finish(tn_module *self) {
    tn_llama *m = (tn_llama *)self;
    free(m->layers);
    m->layers = NULL;
}

static void init_layers(tn_llama *m) {
    const tn_llama_options *o = &m->options;
    tn_llama_block_options block = {.heads = o->heads,
                                    .kv_heads = o->kv_heads,
                                    .head_width = o->head_width,
                                    .rotary = o->rotary,
                                    .eps = o->eps,
                                    .dtype = o->dtype};
    for (int i = 0; i < o->layers; i++) {
        char name[24];
        snprintf(name, sizeof(name), "layers.%d", i);
        tn_llama_block_init(&m->layers[i], o->width, o->hidden, block);
        tn_module_add(m, name, &m->layers[i]);
    }
}

/* The classifier: a matrix of its own, or that of the embedding. */
static void init_head(tn_llama *m) {
    const tn_llama_options *o = &m->options;
    if (o->tied) {
        tn__linear_share(&m->lm_head, m->embed_tokens.weight);
    } else {
        tn_linear_init(&m->lm_head, o->width, o->vocab,
                       (tn_linear_options){.bias = false, .dtype = o->dtype});
    }
    tn_module_add(m, "lm_head", &m->lm_head);
    if (o->tied) {
        tn_module_tie(m, "lm_head.weight", "embed_tokens.weight");
    }
}

void tn_llama_init(tn_llama *m, tn_llama_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "llama", NULL, llama_forward)) {
        return;
    }
    if (options.vocab < 1 || options.context < 1 || options.layers < 1 || options.width < 1) {
        tn__layer_refuse(m, TN_EVALUE,
                         "vocab %lld, context %lld, layers %d, width %lld (at least 1 each)",
                         (long long)options.vocab, (long long)options.context, options.layers,
                         (long long)options.width);
        return;
    }
    m->options = options;
    m->base.finish = llama_finish;
    m->base.describe = llama_describe;
    m->layers = tn__calloc((size_t)options.layers, sizeof(*m->layers));
    if (!m->layers) {
        tn__layer_refuse(m, TN_ENOMEM, "no memory for %d layers", options.layers);
        return;
    }
    tn_norm_options norm = tn_norm_defaults();
    norm.eps = options.eps;
    norm.dtype = options.dtype;
    tn_embedding_init(&m->embed_tokens, options.vocab, options.width, options.dtype);
    tn_module_add(m, "embed_tokens", &m->embed_tokens);
    init_layers(m);
    tn_rms_norm_init(&m->norm, options.width, norm);
    tn_module_add(m, "norm", &m->norm);
    init_head(m);
    tn_module_each(m, (tn_walk){0}, init_entry, m);
}

/* ---- As one of the language models ----------------------------------------------------------- */

static tn_lm_shape llama_shape(const tn_module *self) {
    const tn_llama_options *o = &((const tn_llama *)self)->options;
    return (tn_lm_shape){.vocab = o->vocab,
                         .context = o->context,
                         .layers = o->layers,
                         .heads = o->heads,
                         .kv_heads = o->kv_heads ? o->kv_heads : o->heads,
                         .width = o->width};
}

const tn__lm_family tn__llama_family = {
    .kind = "llama", .model_type = "llama", .bytes = sizeof(tn_llama), .shape = llama_shape};
