/* llama: a modern decoder-only transformer      Touvron et al. 2023, arXiv:2302.13971; Grattafiori
 * et al. 2024, arXiv:2407.21783
 *
 *     x = embed_tokens[tokens]                        the stem: (B, T, C)
 *     x = layers.0(x), layers.1(x), …                 the blocks
 *     logits = lm_head(norm(x))                       the top: (B, T, vocab)
 *
 * What has changed since GPT-2: positions rotate queries and keys instead of being added to x,
 * heads share keys and values, the MLP is gated, norms neither centre nor shift, nothing has a
 * bias. The parameters have Hugging Face's names, without the "model." in front of most.
 *
 * Read next: models/llama_block.c, nn/grouped_attention.c.
 */
#include "models/language.h"

#include "core/memory.h"
#include "models/weights/described.h"
#include "nn/call.h"
#include "nn/describe.h"
#include "nn/layer.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Forward --------------------------------------------------------------------------------- */

/* tokens (B, T) -> (B, T, C); positions, if any, are for the layers */
static tn_values stem_forward(tn_module *self, tn_values in, void *context) {
    tn_llama_stem *m = (tn_llama_stem *)self;
    tn_tensor *positions;
    if (!tn__lm_stem_inputs(self, in, &positions)) { return tn__no_values(); }
    return tn_values_of(tn_call(&m->embed_tokens, in.v[0]), NULL);
}

/* (B, T, C) -> (B, T, vocab) */
static tn_values top_forward(tn_module *self, tn_values in, void *context) {
    tn_llama_top *m = (tn_llama_top *)self;
    tn_tensor *x = tn__lm_top_input(self, in, context);
    return tn_values_of(tn_call(&m->lm_head, tn_call(&m->norm, x)), NULL);
}

static tn_values llama_forward(tn_module *self, tn_values in, void *context) {
    return tn__lm_forward(&tn__llama_family, self, in, context);
}

/* ---- Building -------------------------------------------------------------------------------- */

tn_llama_options tn_llama_defaults(void) {
    tn_rotary_options rotary = TN_WITH(tn_rotary, .theta = 500000.0, .factor = 32.0);
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
                              .dtype = TN_F32,
                              .from_defaults = true};
}

/* Matrices: normal; the weights of norms stay 1. */
static bool init_entry(const tn_entry *entry, void *user) {
    if (entry->layout.whole.ndim >= 2) { tn_init_normal(*entry->field, 0.0, 0.02); }
    return true;
}

/* The range of a number in a file. */
#define COUNT .least = 1, .most = INT32_MAX

/* The width of a head, theta and eps are in the layers' own descriptions. */
static const tn_field llama_fields[] = {
    TN_FIELD_OPTION(tn_llama, vocab, COUNT),
    TN_FIELD_OPTION(tn_llama, layers, COUNT),
    TN_FIELD_OPTION(tn_llama, heads, COUNT),
    TN_FIELD_OPTION(tn_llama, kv_heads, COUNT),
    TN_FIELD_OPTION(tn_llama, width, COUNT),
    TN_FIELD_OPTION(tn_llama, hidden, COUNT),
    TN_FIELD_OPTION(tn_llama, tied),
    TN_FIELD_OPTION(tn_llama, context, COUNT, .training = true),
    {0},
};

static void llama_finish(tn_module *self) {
    tn_llama *m = (tn_llama *)self;
    free(m->layers);
    m->layers = NULL;
}

static void init_stem(tn_llama_stem *m, const tn_llama_options *o) {
    tn__layer_begin(m, sizeof(*m), "llama_stem", NULL, stem_forward);
    tn_embedding_init(&m->embed_tokens, o->vocab, o->width,
                      TN_WITH(tn_embedding, .dtype = o->dtype));
    tn_module_add(m, "embed_tokens", &m->embed_tokens);
}

static void init_layers(tn_llama *m) {
    const tn_llama_options *o = &m->options;
    tn_llama_block_options block =
        TN_WITH(tn_llama_block, .heads = o->heads, .kv_heads = o->kv_heads,
                .head_width = o->head_width, .rotary = o->rotary, .eps = o->eps, .dtype = o->dtype);
    for (int i = 0; i < o->layers; i++) {
        char name[24];
        snprintf(name, sizeof(name), "layers.%d", i);
        tn_llama_block_init(&m->layers[i], o->width, o->hidden, block);
        tn_module_add(m, name, &m->layers[i]);
    }
}

/* The classifier: a matrix of its own, or that of the embedding. */
static void init_top(tn_llama_top *m, const tn_llama_options *o, tn_tensor *tied) {
    tn__layer_begin(m, sizeof(*m), "llama_top", NULL, top_forward);
    tn_rms_norm_init(&m->norm, o->width, TN_WITH(tn_norm, .eps = o->eps, .dtype = o->dtype));
    if (o->tied) {
        tn__linear_share(&m->lm_head, tied);
    } else {
        tn_linear_init(&m->lm_head, o->width, o->vocab,
                       TN_WITH(tn_linear, .bias = false, .dtype = o->dtype));
    }
    tn_module_add(m, "norm", &m->norm);
    tn_module_add(m, "lm_head", &m->lm_head);
}

void tn_llama_init(tn_llama *m, tn_llama_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "llama", NULL, llama_forward) ||
        !tn__layer_options(m, options.from_defaults, "tn_llama") ||
        !TN__LAYER_FITS(m, {"vocab", options.vocab, 1, 0}, {"context", options.context, 1, 0},
                        {"layers", options.layers, 1, TN__MOST_LAYERS},
                        {"width", options.width, 1, 0})) {
        return;
    }
    m->options = options;
    m->options.kv_heads = options.kv_heads ? options.kv_heads : options.heads;
    m->base.finish = llama_finish;
    m->base.fields = llama_fields;
    m->layers = tn__calloc((size_t)options.layers, sizeof(*m->layers));
    if (!m->layers) {
        tn__layer_refuse(m, TN_ENOMEM, "no memory for %d layers", options.layers);
        return;
    }
    init_stem(&m->stem, &options);
    tn_module_add(m, "", &m->stem);
    init_layers(m);
    init_top(&m->top, &options, m->stem.embed_tokens.weight);
    tn_module_add(m, "", &m->top);
    if (options.tied) { tn_module_tie(m, "lm_head.weight", "embed_tokens.weight"); }
    tn_module_each(m, (tn_walk){0}, init_entry, m);
}

TN__LAYER_HEAP(tn_llama, tn_llama_new(tn_llama_options options), tn_llama_init(m, options))

/* ---- As one of the language models ----------------------------------------------------------- */

static tn_lm_shape llama_shape(const tn_module *self) {
    const tn_llama_options *o = &((const tn_llama *)self)->options;
    return (tn_lm_shape){.vocab = o->vocab,
                         .context = o->context,
                         .layers = o->layers,
                         .heads = o->heads,
                         .kv_heads = o->kv_heads,
                         .width = o->width};
}

static tn_module *llama_part(tn_module *self, int i) {
    tn_llama *m = (tn_llama *)self;
    return i == 0 ? &m->stem.base : i <= m->options.layers ? &m->layers[i - 1].base : &m->top.base;
}

static const tn_kv_cache *llama_cache(const tn_module *self) {
    return &((const tn_llama *)self)->layers[0].self_attn.cache;
}

static bool llama_described(void *self, const tn__described *d, tn_dtype dtype) {
    tn_llama *m = self;
    tn_grouped_attention attention = {.rotary = tn_rotary_defaults()};
    tn_rms_norm norm;
    m->options = tn_llama_defaults();
    if (!tn__described_read(d, ".", llama_fields, m) ||
        !tn__described_read(d, "layers.0.self_attn", tn__grouped_attention_fields, &attention) ||
        !tn__described_read(d, "norm", tn__rms_norm_fields, &norm) ||
        !tn__described_layers(d, m->options.layers)) {
        return false;
    }
    m->options.head_width = attention.head_width;
    m->options.rotary = attention.rotary;
    m->options.eps = norm.eps;
    m->options.dtype = dtype;
    tn_llama_init(m, m->options);
    return !tn__pending();
}

const tn_tp_rule tn_llama_tp[] = {
    {"layers.*.self_attn layers.*.mlp lm_head", TN_TP_ENTER, 0},
    {"layers.*.self_attn.q_proj layers.*.self_attn.k_proj layers.*.self_attn.v_proj", TN_TP_COLUMN,
     1},
    {"layers.*.mlp.gate_proj layers.*.mlp.up_proj", TN_TP_COLUMN, 1},
    {"layers.*.self_attn.o_proj layers.*.mlp.down_proj", TN_TP_ROW, 0},
    {"embed_tokens", TN_TP_VOCAB, 0},
    {"lm_head", TN_TP_LOGITS, 0},
    {"layers.*.input_layernorm layers.*.post_attention_layernorm norm", TN_TP_SEQUENCE, 0},
    {0},
};

const tn__lm_family tn__llama_family = {.kind = "llama",
                                        .model_type = "llama",
                                        .bytes = sizeof(tn_llama),
                                        .shape = llama_shape,
                                        .part = llama_part,
                                        .cache = llama_cache,
                                        .turns = true,
                                        .described = llama_described,
                                        .hf = &tn__llama_hf,
                                        .tp = tn_llama_tp};
