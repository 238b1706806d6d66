/* gpt: a decoder-only transformer                     Radford et al. 2019, "Language models are
 * unsupervised multitask learners"
 *
 *     x = wte[tokens] + wpe[positions]                the stem: (B, T, C)
 *     x = h.0(x), h.1(x), …                           the blocks
 *     logits = lm_head(ln_f(x)) = ln_f(x) wte^T       the top: (B, T, vocab)
 *
 * The parameters have Hugging Face's names. Its GPT-2 files keep the weights of c_attn, c_fc and
 * c_proj as (in, out), transposed with respect to ours. The classifier's weight is wte.weight, and
 * walks skip its second name.
 *
 * Read next: models/block.c, models/language.c (the order of the parts),
 * models/generate/generate.c.
 */
#include "models/language.h"

#include "core/memory.h"
#include "models/weights/described.h"
#include "nn/call.h"
#include "nn/describe.h"
#include "nn/layer.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Forward --------------------------------------------------------------------------------- */

/* (tokens (B, T), positions) -> (B, T, C) */
static tn_values stem_forward(tn_module *self, tn_values in, void *context) {
    tn_gpt_stem *m = (tn_gpt_stem *)self;
    tn_tensor *positions;
    if (!tn__lm_stem_inputs(self, in, &positions)) { return tn__no_values(); }
    tn_tensor *token = tn_call(&m->wte, in.v[0]), *position = tn_call(&m->wpe, positions);
    tn_tensor *x = tn_add(token, position);
    tn_drop(token);
    tn_drop(position);
    return tn_values_of(tn_call(&m->drop, x), NULL);
}

/* (B, T, C) -> (B, T, vocab) */
static tn_values top_forward(tn_module *self, tn_values in, void *context) {
    tn_gpt_top *m = (tn_gpt_top *)self;
    tn_tensor *x = tn__lm_top_input(self, in, context);
    return tn_values_of(tn_call(&m->lm_head, tn_call(&m->ln_f, x)), NULL);
}

static tn_values gpt_forward(tn_module *self, tn_values in, void *context) {
    return tn__lm_forward(&tn__gpt_family, self, in, context);
}

/* ---- Building -------------------------------------------------------------------------------- */

tn_gpt_options tn_gpt_defaults(void) {
    return (tn_gpt_options){.vocab = 50257,
                            .context = 1024,
                            .layers = 12,
                            .heads = 12,
                            .width = 768,
                            .bias = true,
                            .activation = TN_ACT_GELU_TANH,
                            .dtype = TN_F32,
                            .from_defaults = true};
}

/* Matrices: normal; biases: 0; the weights of norms stay 1. */
static bool init_entry(const tn_entry *entry, void *user) {
    const tn_gpt *m = user;
    if (entry->layout.whole.ndim >= 2) {
        bool residual = tn__ends_with(entry->path, "c_proj.weight");
        tn_init_normal(*entry->field, 0.0, residual ? 0.02 / sqrt(2.0 * m->options.layers) : 0.02);
    } else if (tn__ends_with(entry->path, "bias")) {
        tn_init_constant(*entry->field, 0.0);
    }
    return true;
}

/* The range of a number in a file. */
#define COUNT .least = 1, .most = INT32_MAX

static const tn_field gpt_fields[] = {
    TN_FIELD_OPTION(tn_gpt, vocab, COUNT),
    TN_FIELD_OPTION(tn_gpt, context, COUNT),
    TN_FIELD_OPTION(tn_gpt, layers, COUNT),
    TN_FIELD_OPTION(tn_gpt, heads, COUNT),
    TN_FIELD_OPTION(tn_gpt, width, COUNT),
    TN_FIELD_OPTION(tn_gpt, bias),
    TN_FIELD_OPTION(tn_gpt, activation, .names = tn__activation_names),
    TN_FIELD_OPTION(tn_gpt, dropout, .training = true),
    {0},
};

static void gpt_finish(tn_module *self) {
    tn_gpt *m = (tn_gpt *)self;
    free(m->h);
    m->h = NULL;
}

/* False after raising. */
static bool options_fit(tn_gpt *m, const tn_gpt_options *o) {
    return TN__LAYER_FITS(m, {"vocab", o->vocab, 1, 0}, {"context", o->context, 1, 0},
                          {"layers", o->layers, 1, TN__MOST_LAYERS}, {"heads", o->heads, 1, 0},
                          {"width", o->width, 1, 0}) &&
           tn__layer_multiple(m, "width", o->width, "heads", o->heads);
}

static void init_stem(tn_gpt_stem *m, const tn_gpt_options *o) {
    tn__layer_begin(m, sizeof(*m), "gpt_stem", NULL, stem_forward);
    tn_embedding_init(&m->wte, o->vocab, o->width, TN_WITH(tn_embedding, .dtype = o->dtype));
    tn_embedding_init(&m->wpe, o->context, o->width, TN_WITH(tn_embedding, .dtype = o->dtype));
    tn_dropout_init(&m->drop, o->dropout);
    tn_module_add(m, "wte", &m->wte);
    tn_module_add(m, "wpe", &m->wpe);
    tn_module_add(m, "drop", &m->drop);
}

static void init_blocks(tn_gpt *m) {
    const tn_gpt_options *o = &m->options;
    tn_block_options block =
        TN_WITH(tn_block, .heads = o->heads, .bias = o->bias, .dropout = o->dropout,
                .activation = o->activation, .dtype = o->dtype);
    for (int i = 0; i < o->layers; i++) {
        char name[24];
        snprintf(name, sizeof(name), "h.%d", i);
        tn_block_init(&m->h[i], o->width, block);
        tn_module_add(m, name, &m->h[i]);
    }
}

static void init_top(tn_gpt_top *m, const tn_gpt_options *o, tn_tensor *classifier) {
    tn__layer_begin(m, sizeof(*m), "gpt_top", NULL, top_forward);
    tn_layer_norm_init(&m->ln_f, o->width, TN_WITH(tn_norm, .bias = o->bias, .dtype = o->dtype));
    tn__linear_share(&m->lm_head, classifier);
    tn_module_add(m, "ln_f", &m->ln_f);
    tn_module_add(m, "lm_head", &m->lm_head);
}

void tn_gpt_init(tn_gpt *m, tn_gpt_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "gpt", NULL, gpt_forward) ||
        !tn__layer_options(m, options.from_defaults, "tn_gpt") || !options_fit(m, &options)) {
        return;
    }
    m->options = options;
    m->base.finish = gpt_finish;
    m->base.fields = gpt_fields;
    m->h = tn__calloc((size_t)options.layers, sizeof(*m->h));
    if (!m->h) {
        tn__layer_refuse(m, TN_ENOMEM, "no memory for %d layers", options.layers);
        return;
    }
    init_stem(&m->stem, &options);
    tn_module_add(m, "", &m->stem);
    init_blocks(m);
    init_top(&m->top, &options, m->stem.wte.weight);
    tn_module_add(m, "", &m->top);
    tn_module_tie(m, "lm_head.weight", "wte.weight");
    tn_module_each(m, (tn_walk){0}, init_entry, m);
}

TN__LAYER_HEAP(tn_gpt, tn_gpt_new(tn_gpt_options options), tn_gpt_init(m, options))

/* ---- As one of the language models ----------------------------------------------------------- */

static tn_lm_shape gpt_shape(const tn_module *self) {
    const tn_gpt_options *o = &((const tn_gpt *)self)->options;
    return (tn_lm_shape){.vocab = o->vocab,
                         .context = o->context,
                         .layers = o->layers,
                         .heads = o->heads,
                         .kv_heads = o->heads,
                         .width = o->width};
}

static tn_module *gpt_part(tn_module *self, int i) {
    tn_gpt *m = (tn_gpt *)self;
    return i == 0 ? &m->stem.base : i <= m->options.layers ? &m->h[i - 1].base : &m->top.base;
}

static const tn_kv_cache *gpt_cache(const tn_module *self) {
    return &((const tn_gpt *)self)->h[0].attn.cache;
}

static bool gpt_described(void *self, const tn__described *d, tn_dtype dtype) {
    tn_gpt *m = self;
    tn_layer_norm norm;
    m->options = tn_gpt_defaults();
    if (!tn__described_read(d, ".", gpt_fields, m) || !tn__described_layers(d, m->options.layers) ||
        !tn__described_read(d, "ln_f", tn__layer_norm_fields, &norm)) {
        return false;
    }
    m->options.dropout = 0; /* as of all that are loaded */
    m->options.dtype = dtype;
    tn_gpt_init(m, m->options);
    tn__norms_set_eps(m, norm.eps);
    return true;
}

const tn_tp_rule tn_gpt_tp[] = {
    {"h.*.attn h.*.mlp lm_head", TN_TP_ENTER, 0},
    {"h.*.attn.c_attn", TN_TP_COLUMN, 3},
    {"h.*.mlp.c_fc", TN_TP_COLUMN, 1},
    {"h.*.attn.c_proj h.*.mlp.c_proj", TN_TP_ROW, 0},
    {"wte", TN_TP_VOCAB, 0},
    {"lm_head", TN_TP_LOGITS, 0},
    {"wpe drop h.*.ln_1 h.*.ln_2 h.*.attn.drop h.*.mlp.drop ln_f", TN_TP_SEQUENCE, 0},
    {0},
};

const tn__lm_family tn__gpt_family = {.kind = "gpt",
                                      .model_type = "gpt2",
                                      .bytes = sizeof(tn_gpt),
                                      .shape = gpt_shape,
                                      .part = gpt_part,
                                      .cache = gpt_cache,
                                      .described = gpt_described,
                                      .hf = &tn__gpt_hf,
                                      .tp = tn_gpt_tp};
