/* gpt: a decoder-only transformer                     Radford et al. 2019, "Language models are
 * unsupervised multitask learners"
 *
 *     x = wte[tokens] + wpe[positions]                (B, T, C)
 *     x = h.0(x), h.1(x), …
 *     logits = ln_f(x) wte^T                          (B, T, vocab)
 *
 * The parameters have Hugging Face's names. Its GPT-2 files keep the weights of c_attn, c_fc and
 * c_proj as (in, out), the transpose of what is here. The classifier is wte.weight, so no name of
 * its own exists for it.
 *
 * Read next: models/block.c, models/generate.c.
 */
#include "models/language.h"

#include "core/memory.h"
#include "core/number.h"
#include "nn/cache.h"
#include "nn/describe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Forward --------------------------------------------------------------------------------- */

/* tokens (B, T), positions (T) or (B, T) -> (B, T, C) */
static tn_tensor *embed_tokens(tn_gpt *m, tn_tensor *tokens, tn_tensor *positions) {
    tn_tensor *token = tn_call(&m->wte, tokens), *position = tn_call(&m->wpe, positions);
    tn_tensor *x = tn_add(token, position);
    tn_drop(token);
    tn_drop(position);
    return tn_call(&m->drop, x);
}

/* The blocks, one after the other. What one gave goes as soon as the next has read it. */
static tn_tensor *call_blocks(tn_gpt *m, tn_tensor *x, tn_tensor *mask) {
    for (int i = 0; i < m->options.layers; i++) {
        tn_tensor *y = tn_call_values(&m->h[i], tn_values_of(x, mask), NULL).v[0];
        if (y != x) { /* a hook may hand the input on */
            tn_drop(x);
        }
        x = y;
    }
    return x;
}

static tn_values gpt_forward(tn_module *self, tn_values in, void *context) {
    tn_gpt *m = (tn_gpt *)self;
    const tn__lm_context *call = context;
    const tn_kv_cache *cache = &m->h[0].attn.cache;
    int64_t start = tn__cache_start(cache);
    tn__lm_inputs inputs;
    if (!tn__lm_inputs_of(self, in, start, m->options.context, &inputs)) {
        return tn__no_values();
    }
    tn_tensor *x = embed_tokens(m, inputs.tokens, inputs.positions);
    x = call_blocks(m, x, inputs.mask);
    x = tn_call(&m->ln_f, x);
    if (call && call->last_only) {
        x = tn_narrow(x, 1, inputs.length - 1, 1);
    }
    tn_tensor *logits = tn_linear_op(x, m->wte.weight, NULL);
    if (tn__cache_open(cache) && tn_is_inert(logits)) { /* some blocks are ahead of others */
        tn__cache_restore(m, start);
    }
    return tn_values_of(logits, NULL);
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
                            .dtype = TN_F32};
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), e = strlen(end);
    return n >= e && strcmp(text + n - e, end) == 0;
}

/* Matrices: normal; biases: 0; the weights of norms stay 1. */
static bool init_entry(const tn_entry *entry, void *user) {
    const tn_gpt *m = user;
    if (entry->layout.whole.ndim >= 2) {
        bool residual = ends_with(entry->path, "c_proj.weight");
        tn_init_normal(*entry->field, 0.0, residual ? 0.02 / sqrt(2.0 * m->options.layers) : 0.02);
    } else if (ends_with(entry->path, "bias")) {
        tn_init_constant(*entry->field, 0.0);
    }
    return true;
}

static int gpt_describe(const tn_module *self, char *text, size_t room) {
    const tn_gpt_options *o = &((const tn_gpt *)self)->options;
    return snprintf(text, room,
                    "vocab %lld, context %lld, layers %d, heads %d, width %lld, bias %d, "
                    "activation %s; dropout %s",
                    (long long)o->vocab, (long long)o->context, o->layers, o->heads,
                    (long long)o->width, o->bias, tn__activation_name(o->activation),
                    tn__number_of(o->dropout).text);
}

static void gpt_finish(tn_module *self) {
    tn_gpt *m = (tn_gpt *)self;
    free(m->h);
    m->h = NULL;
}

/* False after raising. */
static bool options_fit(tn_gpt *m, const tn_gpt_options *o) {
    if (o->vocab < 1 || o->context < 1 || o->layers < 1 || o->heads < 1 || o->width < 1 ||
        o->width % o->heads != 0) {
        tn__layer_refuse(m, TN_EVALUE,
                         "vocab %lld, context %lld, layers %d, heads %d, width %lld (at least 1 "
                         "each; width a multiple of heads)",
                         (long long)o->vocab, (long long)o->context, o->layers, o->heads,
                         (long long)o->width);
        return false;
    }
    return true;
}

static void init_blocks(tn_gpt *m) {
    tn_block_options block = tn_block_defaults();
    block.heads = m->options.heads;
    block.bias = m->options.bias;
    block.dropout = m->options.dropout;
    block.activation = m->options.activation;
    block.dtype = m->options.dtype;
    for (int i = 0; i < m->options.layers; i++) {
        char name[24];
        snprintf(name, sizeof(name), "h.%d", i);
        tn_block_init(&m->h[i], m->options.width, block);
        tn_module_add(m, name, &m->h[i]);
    }
}

void tn_gpt_init(tn_gpt *m, tn_gpt_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "gpt", NULL, gpt_forward) || !options_fit(m, &options)) {
        return;
    }
    m->options = options;
    m->base.finish = gpt_finish;
    m->base.describe = gpt_describe;
    m->h = tn__calloc((size_t)options.layers, sizeof(*m->h));
    if (!m->h) {
        tn__layer_refuse(m, TN_ENOMEM, "no memory for %d layers", options.layers);
        return;
    }
    tn_embedding_init(&m->wte, options.vocab, options.width, options.dtype);
    tn_embedding_init(&m->wpe, options.context, options.width, options.dtype);
    tn_dropout_init(&m->drop, options.dropout);
    tn_norm_options norm = tn_norm_defaults();
    norm.bias = options.bias;
    norm.dtype = options.dtype;
    tn_module_add(m, "wte", &m->wte);
    tn_module_add(m, "wpe", &m->wpe);
    tn_module_add(m, "drop", &m->drop);
    init_blocks(m);
    tn_layer_norm_init(&m->ln_f, options.width, norm);
    tn_module_add(m, "ln_f", &m->ln_f);
    tn_module_each(m, (tn_walk){0}, init_entry, m);
}

static tn_lm_shape gpt_shape(const tn_module *self) {
    const tn_gpt_options *o = &((const tn_gpt *)self)->options;
    return (tn_lm_shape){.vocab = o->vocab,
                         .context = o->context,
                         .layers = o->layers,
                         .heads = o->heads,
                         .kv_heads = o->heads,
                         .width = o->width};
}

const tn__lm_family tn__gpt_family = {
    .kind = "gpt", .model_type = "gpt2", .bytes = sizeof(tn_gpt), .shape = gpt_shape};
