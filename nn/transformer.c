/* transformer: an encoder, and a decoder that also attends to what the encoder made
 * (Vaswani et al. 2017, arXiv:1706.03762), with the names of PyTorch's modules
 *
 *     encoder layer    x = norm1(x + self_attn(x));  x = norm2(x + linear2(act(linear1(x))))
 *     decoder layer    the same with norm2(x + multihead_attn(x, memory)) between, then norm3
 *
 * norm_first: x + f(norm(x)) instead. Every branch ends in dropout, and so do the attentions'
 * weights and the activation.
 */
#include "core/number.h"
#include "nn/attention.h"
#include "nn/describe.h"
#include "nn/module.h"

#include <stdio.h>

tn_transformer_options tn_transformer_defaults(void) {
    return (tn_transformer_options){.hidden = 2048,
                                    .dropout = 0.1,
                                    .activation = TN_ACT_RELU,
                                    .eps = 1e-5,
                                    .bias = true,
                                    .dtype = TN_F32};
}

/* ---- What layers have in common -------------------------------------------------------------- */

static tn_multi_head_attention_options attention_of(const tn_transformer_options *o, bool causal) {
    tn_multi_head_attention_options a = tn_multi_head_attention_defaults();
    a.dropout = o->dropout;
    a.bias = o->bias;
    a.causal = causal;
    a.dtype = o->dtype;
    return a;
}

static tn_norm_options norm_of(const tn_transformer_options *o) {
    return (tn_norm_options){.eps = o->eps, .weight = true, .bias = o->bias, .dtype = o->dtype};
}

static tn_linear_options linear_of(const tn_transformer_options *o) {
    return (tn_linear_options){.bias = o->bias, .dtype = o->dtype};
}

/* False after raising, with m broken. */
static bool activation_fits(void *m, const tn_transformer_options *o) {
    bool fits = (unsigned)o->activation <= TN_ACT_SILU;
    if (!fits) {
        tn__layer_refuse(m, TN_EVALUE, "there is no activation %d", (int)o->activation);
    }
    return fits;
}

/* Absent inputs become NULL. False after raising: the first `needed` must be there. */
static bool take_inputs(const tn_module *m, tn_values *in, int needed, int most,
                        const char *names) {
    bool fits = in->n >= needed && in->n <= most;
    for (int i = 0; fits && i < needed; i++) {
        fits = in->v[i] != NULL;
    }
    for (int i = in->n < 0 ? 0 : in->n; i < TN_MAX_VALUES; i++) {
        in->v[i] = NULL;
    }
    if (!fits) {
        tn__raise(TN_EVALUE, m->kind,
                  "the inputs are %s; the first %d must be there (%d are given)", names, needed,
                  in->n);
    }
    return fits;
}

static tn_tensor *attend_with(tn_multi_head_attention *m, tn_tensor *query, tn_tensor *memory,
                              tn_tensor *padding, tn_tensor *mask) {
    return tn_call_list(m, (tn_values){5, {query, memory, memory, padding, mask}});
}

/* ---- The encoder's layer --------------------------------------------------------------------- */

/* (src, mask, key padding mask) -> (B, T, C) */
static tn_values encoder_layer_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    tn_transformer_encoder_layer *m = (tn_transformer_encoder_layer *)self;
    if (!take_inputs(self, &in, 1, 3, "src, mask and key padding mask")) {
        return tn__no_values();
    }
    tn_tensor *x = in.v[0], *y = m->norm_first ? tn_call(&m->norm1, x) : x;
    y = attend_with(&m->self_attn, y, y, in.v[2], in.v[1]);
    x = tn__add_branch(x, tn_call(&m->dropout1, y));
    x = m->norm_first ? x : tn_call(&m->norm1, x);
    y = m->norm_first ? tn_call(&m->norm2, x) : x;
    y = tn__activate(m->activation, tn_call(&m->linear1, y));
    y = tn_call(&m->linear2, tn_call(&m->dropout, y));
    x = tn__add_branch(x, tn_call(&m->dropout2, y));
    return tn_values_of(m->norm_first ? x : tn_call(&m->norm2, x), NULL);
}

static int describe_layer(bool norm_first, tn_activation activation, char *text, size_t room) {
    return snprintf(text, room, "norm_first %d, activation %s", norm_first,
                    tn__activation_name(activation));
}

static int encoder_layer_describe(const tn_module *self, char *text, size_t room) {
    const tn_transformer_encoder_layer *m = (const tn_transformer_encoder_layer *)self;
    return describe_layer(m->norm_first, m->activation, text, room);
}

void tn_transformer_encoder_layer_init(tn_transformer_encoder_layer *m, int64_t width, int heads,
                                       tn_transformer_options o) {
    if (!tn__layer_begin(m, sizeof(*m), "transformer_encoder_layer", NULL, encoder_layer_forward) ||
        !activation_fits(m, &o)) {
        return;
    }
    m->base.describe = encoder_layer_describe;
    m->norm_first = o.norm_first;
    m->activation = o.activation;
    tn_multi_head_attention_init(&m->self_attn, width, heads, attention_of(&o, o.causal));
    TN_ADD(m, self_attn);
    tn_linear_init(&m->linear1, width, o.hidden, linear_of(&o));
    TN_ADD(m, linear1);
    tn_dropout_init(&m->dropout, o.dropout);
    TN_ADD(m, dropout);
    tn_linear_init(&m->linear2, o.hidden, width, linear_of(&o));
    TN_ADD(m, linear2);
    tn_layer_norm_init(&m->norm1, width, norm_of(&o));
    TN_ADD(m, norm1);
    tn_layer_norm_init(&m->norm2, width, norm_of(&o));
    TN_ADD(m, norm2);
    tn_dropout_init(&m->dropout1, o.dropout);
    TN_ADD(m, dropout1);
    tn_dropout_init(&m->dropout2, o.dropout);
    TN_ADD(m, dropout2);
}

/* ---- The decoder's layer --------------------------------------------------------------------- */

/* (tgt, memory, tgt mask, memory mask, tgt padding, memory padding) -> (B, T, C) */
static tn_values decoder_layer_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    tn_transformer_decoder_layer *m = (tn_transformer_decoder_layer *)self;
    if (!take_inputs(self, &in, 2, 6, "tgt, memory, their masks and their key padding masks")) {
        return tn__no_values();
    }
    tn_tensor *x = in.v[0], *memory = in.v[1], *y = m->norm_first ? tn_call(&m->norm1, x) : x;
    y = attend_with(&m->self_attn, y, y, in.v[4], in.v[2]);
    x = tn__add_branch(x, tn_call(&m->dropout1, y));
    x = m->norm_first ? x : tn_call(&m->norm1, x);
    y = m->norm_first ? tn_call(&m->norm2, x) : x;
    y = attend_with(&m->multihead_attn, y, memory, in.v[5], in.v[3]);
    x = tn__add_branch(x, tn_call(&m->dropout2, y));
    x = m->norm_first ? x : tn_call(&m->norm2, x);
    y = m->norm_first ? tn_call(&m->norm3, x) : x;
    y = tn__activate(m->activation, tn_call(&m->linear1, y));
    y = tn_call(&m->linear2, tn_call(&m->dropout, y));
    x = tn__add_branch(x, tn_call(&m->dropout3, y));
    return tn_values_of(m->norm_first ? x : tn_call(&m->norm3, x), NULL);
}

static int decoder_layer_describe(const tn_module *self, char *text, size_t room) {
    const tn_transformer_decoder_layer *m = (const tn_transformer_decoder_layer *)self;
    return describe_layer(m->norm_first, m->activation, text, room);
}

void tn_transformer_decoder_layer_init(tn_transformer_decoder_layer *m, int64_t width, int heads,
                                       tn_transformer_options o) {
    if (!tn__layer_begin(m, sizeof(*m), "transformer_decoder_layer", NULL, decoder_layer_forward) ||
        !activation_fits(m, &o)) {
        return;
    }
    m->base.describe = decoder_layer_describe;
    m->norm_first = o.norm_first;
    m->activation = o.activation;
    tn_multi_head_attention_init(&m->self_attn, width, heads, attention_of(&o, o.causal));
    TN_ADD(m, self_attn);
    tn_multi_head_attention_init(&m->multihead_attn, width, heads, attention_of(&o, false));
    TN_ADD(m, multihead_attn);
    tn_linear_init(&m->linear1, width, o.hidden, linear_of(&o));
    TN_ADD(m, linear1);
    tn_dropout_init(&m->dropout, o.dropout);
    TN_ADD(m, dropout);
    tn_linear_init(&m->linear2, o.hidden, width, linear_of(&o));
    TN_ADD(m, linear2);
    tn_layer_norm_init(&m->norm1, width, norm_of(&o));
    TN_ADD(m, norm1);
    tn_layer_norm_init(&m->norm2, width, norm_of(&o));
    TN_ADD(m, norm2);
    tn_layer_norm_init(&m->norm3, width, norm_of(&o));
    TN_ADD(m, norm3);
    tn_dropout_init(&m->dropout1, o.dropout);
    TN_ADD(m, dropout1);
    tn_dropout_init(&m->dropout2, o.dropout);
    TN_ADD(m, dropout2);
    tn_dropout_init(&m->dropout3, o.dropout);
    TN_ADD(m, dropout3);
}

/* ---- Stacks ---------------------------------------------------------------------------------- */

/* The layers of a stack one after the other, each with the same other inputs; then the norm. */
static tn_values run_stack(tn_module_list *layers, void *norm, tn_values in) {
    tn_tensor *input = in.v[0];
    for (int i = 0, n = tn_module_children(layers); i < n; i++) {
        tn_tensor *y = tn_call_list(tn_module_at(layers, i), in);
        if (in.v[0] != input) {
            tn_drop(in.v[0]);
        }
        in.v[0] = y;
    }
    return tn_values_of(norm ? tn_call(norm, in.v[0]) : in.v[0], NULL);
}

static tn_values encoder_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    tn_transformer_encoder *m = (tn_transformer_encoder *)self;
    return take_inputs(self, &in, 1, 3, "src, mask and key padding mask")
               ? run_stack(m->layers, m->norm, in)
               : tn__no_values();
}

static tn_values decoder_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    tn_transformer_decoder *m = (tn_transformer_decoder *)self;
    return take_inputs(self, &in, 2, 6, "tgt, memory, their masks and their key padding masks")
               ? run_stack(m->layers, m->norm, in)
               : tn__no_values();
}

/* False after raising, with m broken. */
static bool count_fits(void *m, int layers) {
    if (layers < 0) {
        tn__layer_refuse(m, TN_EVALUE, "there are %d layers", layers);
    }
    return layers >= 0;
}

void tn_transformer_encoder_init(tn_transformer_encoder *m, int64_t width, int heads, int layers,
                                 tn_transformer_options o) {
    if (!tn__layer_begin(m, sizeof(*m), "transformer_encoder", NULL, encoder_forward) ||
        !count_fits(m, layers)) {
        return;
    }
    TN_OWN(m, layers, tn_module_list_new());
    for (int i = 0; i < layers && !tn__pending(); i++) {
        tn_transformer_encoder_layer *layer = tn__layer_alloc(sizeof(*layer));
        tn_transformer_encoder_layer_init(layer, width, heads, o);
        tn_module_append(m->layers, tn__layer_on_heap(layer));
    }
    if (o.final_norm) {
        TN_OWN(m, norm, tn_layer_norm_new_with(width, norm_of(&o)));
    }
}

void tn_transformer_decoder_init(tn_transformer_decoder *m, int64_t width, int heads, int layers,
                                 tn_transformer_options o) {
    if (!tn__layer_begin(m, sizeof(*m), "transformer_decoder", NULL, decoder_forward) ||
        !count_fits(m, layers)) {
        return;
    }
    TN_OWN(m, layers, tn_module_list_new());
    for (int i = 0; i < layers && !tn__pending(); i++) {
        tn_transformer_decoder_layer *layer = tn__layer_alloc(sizeof(*layer));
        tn_transformer_decoder_layer_init(layer, width, heads, o);
        tn_module_append(m->layers, tn__layer_on_heap(layer));
    }
    if (o.final_norm) {
        TN_OWN(m, norm, tn_layer_norm_new_with(width, norm_of(&o)));
    }
}

tn_transformer_encoder *tn_transformer_encoder_new_with(int64_t width, int heads, int layers,
                                                        tn_transformer_options options) {
    tn_transformer_encoder *m = tn__layer_alloc(sizeof(*m));
    tn_transformer_encoder_init(m, width, heads, layers, options);
    return tn__layer_on_heap(m);
}

tn_transformer_encoder *tn_transformer_encoder_new(int64_t width, int heads, int layers) {
    return tn_transformer_encoder_new_with(width, heads, layers, tn_transformer_defaults());
}

tn_transformer_decoder *tn_transformer_decoder_new_with(int64_t width, int heads, int layers,
                                                        tn_transformer_options options) {
    tn_transformer_decoder *m = tn__layer_alloc(sizeof(*m));
    tn_transformer_decoder_init(m, width, heads, layers, options);
    return tn__layer_on_heap(m);
}

tn_transformer_decoder *tn_transformer_decoder_new(int64_t width, int heads, int layers) {
    return tn_transformer_decoder_new_with(width, heads, layers, tn_transformer_defaults());
}

/* ---- Both ------------------------------------------------------------------------------------ */

/* (src, tgt, src mask, tgt mask, memory mask, src padding, tgt padding, memory padding) */
static tn_values transformer_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    tn_transformer *m = (tn_transformer *)self;
    if (!take_inputs(self, &in, 2, 8, "src, tgt, three masks and three key padding masks")) {
        return tn__no_values();
    }
    tn_tensor *const *v = in.v;
    tn_tensor *memory = tn_call_list(m->encoder, (tn_values){3, {v[0], v[2], v[5]}});
    tn_tensor *y = tn_call_list(m->decoder, (tn_values){6, {v[1], memory, v[3], v[4], v[6], v[7]}});
    return tn_values_of(y, NULL);
}

static bool init_matrix(const tn_entry *entry, void *user) {
    (void)user;
    if (entry->layout.whole.ndim > 1) {
        tn_init_xavier_uniform(*entry->field, 1.0);
    }
    return true;
}

void tn_transformer_init(tn_transformer *m, int64_t width, int heads, int encoder_layers,
                         int decoder_layers, tn_transformer_options o) {
    if (!tn__layer_begin(m, sizeof(*m), "transformer", NULL, transformer_forward)) {
        return;
    }
    o.final_norm = true;
    tn_transformer_options encoder = o;
    encoder.causal = false;
    TN_OWN(m, encoder, tn_transformer_encoder_new_with(width, heads, encoder_layers, encoder));
    TN_OWN(m, decoder, tn_transformer_decoder_new_with(width, heads, decoder_layers, o));
    if (!tn__pending()) {
        tn_module_each(m, (tn_walk){0}, init_matrix, NULL);
    }
}

tn_transformer *tn_transformer_new_with(int64_t width, int heads, int encoder_layers,
                                        int decoder_layers, tn_transformer_options options) {
    tn_transformer *m = tn__layer_alloc(sizeof(*m));
    tn_transformer_init(m, width, heads, encoder_layers, decoder_layers, options);
    return tn__layer_on_heap(m);
}

tn_transformer *tn_transformer_new(int64_t width, int heads, int encoder_layers,
                                   int decoder_layers) {
    return tn_transformer_new_with(width, heads, encoder_layers, decoder_layers,
                                   tn_transformer_defaults());
}
