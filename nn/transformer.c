/* transformer: an encoder, and a decoder that also attends to the encoder's output (Vaswani et al.
 * 2017, arXiv:1706.03762), with the names of PyTorch's modules
 *
 *     encoder layer    x = norm1(x + self_attn(x));  x = norm2(x + linear2(act(linear1(x))))
 *     decoder layer    the same with norm2(x + multihead_attn(x, memory)) between, then norm3
 *
 * norm_first: x + f(norm(x)) instead. Every branch ends in dropout, and so do the attentions'
 * weights and the activation.
 */
#include "nn/attention.h"
#include "nn/call.h"
#include "nn/describe.h"
#include "nn/layer.h"

#include <stdio.h>

tn_transformer_options tn_transformer_defaults(void) {
    return (tn_transformer_options){.hidden = 2048,
                                    .dropout = 0.1,
                                    .activation = TN_ACT_RELU,
                                    .eps = 1e-5,
                                    .bias = true,
                                    .dtype = TN_F32,
                                    .from_defaults = true};
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
    return TN_WITH(tn_norm, .eps = o->eps, .bias = o->bias, .dtype = o->dtype);
}

static tn_linear_options linear_of(const tn_transformer_options *o) {
    return TN_WITH(tn_linear, .bias = o->bias, .dtype = o->dtype);
}

/* False after raising, with m broken. */
static bool activation_fits(void *m, const tn_transformer_options *o) {
    return (unsigned)o->activation <= TN_ACT_SILU ||
           tn__layer_refuse(m, TN_EVALUE, "there is no activation %d", (int)o->activation);
}

/* Absent inputs become NULL. False after raising: the first `needed` are required. */
static bool take_inputs(const tn_module *m, tn_values *in, int needed, int max, const char *names) {
    bool fits = in->n >= needed && in->n <= max;
    for (int i = 0; fits && i < needed; i++) {
        fits = in->v[i] != NULL;
    }
    for (int i = in->n < 0 ? 0 : in->n; i < TN_MAX_VALUES; i++) {
        in->v[i] = NULL;
    }
    if (!fits) {
        tn__raise(TN_EVALUE, m->kind, "the inputs are %s; the first %d are required (%d given)",
                  names, needed, in->n);
    }
    return fits;
}

/* ---- Layers ---------------------------------------------------------------------------------- *
 *
 * A layer is a sequence of branches, two in the encoder and three in the decoder; each has a norm
 * and a dropout. */

static tn_layer_norm *norm_at(tn_transformer_layer *m, int branch) {
    tn_layer_norm *norms[] = {&m->norm1, &m->norm2, &m->norm3};
    return norms[branch];
}

static tn_dropout *dropout_at(tn_transformer_layer *m, int branch) {
    tn_dropout *dropouts[] = {&m->dropout1, &m->dropout2, &m->dropout3};
    return dropouts[branch];
}

/* The input of a branch. */
static tn_tensor *branch_input(tn_transformer_layer *m, int branch, tn_tensor *x) {
    return m->norm_first ? tn_call(norm_at(m, branch), x) : x;
}

/* Adds what the branch computed to x. */
static tn_tensor *join_branch(tn_transformer_layer *m, int branch, tn_tensor *x, tn_tensor *made) {
    x = tn__add_branch(x, tn_call(dropout_at(m, branch), made));
    return m->norm_first ? x : tn_call(norm_at(m, branch), x);
}

static tn_tensor *attend_with(tn_multi_head_attention *m, tn_tensor *query, tn_tensor *memory,
                              tn_tensor *padding, tn_tensor *mask) {
    return tn_call_list(m, (tn_values){5, {query, memory, memory, padding, mask}});
}

static tn_tensor *self_branch(tn_transformer_layer *m, tn_tensor *x, tn_tensor *padding,
                              tn_tensor *mask) {
    tn_tensor *y = branch_input(m, 0, x);
    return join_branch(m, 0, x, attend_with(&m->self_attn, y, y, padding, mask));
}

static tn_tensor *hidden_branch(tn_transformer_layer *m, int branch, tn_tensor *x) {
    tn_tensor *y = tn_call(&m->linear1, branch_input(m, branch, x));
    y = tn_call(&m->dropout, tn__activate(m->activation, y));
    return join_branch(m, branch, x, tn_call(&m->linear2, y));
}

/* (src, mask, key padding mask) -> (B, T, C) */
static tn_values encoder_layer_forward(tn_module *self, tn_values in, void *context) {
    tn_transformer_layer *m = (tn_transformer_layer *)self;
    if (!take_inputs(self, &in, 1, 3, "src, mask and key padding mask")) { return tn__no_values(); }
    tn_tensor *x = self_branch(m, in.v[0], in.v[2], in.v[1]);
    return tn_values_of(hidden_branch(m, 1, x), NULL);
}

/* (tgt, memory, tgt mask, memory mask, tgt padding, memory padding) -> (B, T, C) */
static tn_values decoder_layer_forward(tn_module *self, tn_values in, void *context) {
    tn_transformer_layer *m = (tn_transformer_layer *)self;
    if (!take_inputs(self, &in, 2, 6, "tgt, memory, their masks and their key padding masks")) {
        return tn__no_values();
    }
    tn_tensor *x = self_branch(m, in.v[0], in.v[4], in.v[2]);
    tn_tensor *y = branch_input(m, 1, x);
    x = join_branch(m, 1, x, attend_with(&m->multihead_attn, y, in.v[1], in.v[5], in.v[3]));
    return tn_values_of(hidden_branch(m, 2, x), NULL);
}

static const tn_field layer_fields[] = {
    TN_FIELD(tn_transformer_layer, norm_first),
    TN_FIELD_AS("activation", tn_transformer_layer, activation, .names = tn__activation_names),
    {0},
};

/* In PyTorch's order of registration, which is the parameters'. */
static void layer_init(tn_transformer_layer *m, bool decoder, int64_t width, int heads,
                       const tn_transformer_options *o) {
    if (!tn__layer_begin(m, sizeof(*m),
                         decoder ? "transformer_decoder_layer" : "transformer_encoder_layer", NULL,
                         decoder ? decoder_layer_forward : encoder_layer_forward) ||
        !tn__layer_options(m, o->from_defaults, "tn_transformer") || !activation_fits(m, o)) {
        return;
    }
    m->base.fields = layer_fields;
    m->norm_first = o->norm_first;
    m->activation = o->activation;
    tn_multi_head_attention_init(&m->self_attn, width, heads, attention_of(o, o->causal));
    TN_ADD(m, self_attn);
    if (decoder) {
        tn_multi_head_attention_init(&m->multihead_attn, width, heads, attention_of(o, false));
        TN_ADD(m, multihead_attn);
    }
    tn_linear_init(&m->linear1, width, o->hidden, linear_of(o));
    TN_ADD(m, linear1);
    tn_dropout_init(&m->dropout, o->dropout);
    TN_ADD(m, dropout);
    tn_linear_init(&m->linear2, o->hidden, width, linear_of(o));
    TN_ADD(m, linear2);
    char name[24];
    int branches = decoder ? 3 : 2;
    for (int i = 0; i < branches; i++) {
        snprintf(name, sizeof(name), "norm%d", i + 1);
        tn_layer_norm_init(norm_at(m, i), width, norm_of(o));
        tn_module_add(m, name, norm_at(m, i));
    }
    for (int i = 0; i < branches; i++) {
        snprintf(name, sizeof(name), "dropout%d", i + 1);
        tn_dropout_init(dropout_at(m, i), o->dropout);
        tn_module_add(m, name, dropout_at(m, i));
    }
}

void tn_transformer_encoder_layer_init(tn_transformer_encoder_layer *m, int64_t width, int heads,
                                       tn_transformer_options options) {
    layer_init(m, false, width, heads, &options);
}

void tn_transformer_decoder_layer_init(tn_transformer_decoder_layer *m, int64_t width, int heads,
                                       tn_transformer_options options) {
    layer_init(m, true, width, heads, &options);
}

/* ---- Stacks ---------------------------------------------------------------------------------- */

/* Runs the layers in turn, with the same other inputs for each, which they check; then the norm. */
static tn_values stack_forward(tn_module *self, tn_values in, void *context) {
    const tn_transformer_stack *m = (tn_transformer_stack *)self;
    tn_tensor *input = in.v[0];
    for (int i = 0, n = tn_module_children(m->layers); i < n; i++) {
        tn_tensor *y = tn_call_list(tn_module_at(m->layers, i), in);
        if (in.v[0] != input) { tn_drop(in.v[0]); }
        in.v[0] = y;
    }
    return tn_values_of(m->norm ? tn_call(m->norm, in.v[0]) : in.v[0], NULL);
}

static void stack_init(tn_transformer_stack *m, bool decoder, int64_t width, int heads, int layers,
                       const tn_transformer_options *o) {
    if (!tn__layer_begin(m, sizeof(*m), decoder ? "transformer_decoder" : "transformer_encoder",
                         NULL, stack_forward) ||
        !tn__layer_options(m, o->from_defaults, "tn_transformer")) {
        return;
    }
    if (layers < 0 || layers > TN__MOST_LAYERS) {
        tn__layer_refuse(m, TN_EVALUE, "there are %d layers (0 to %d)", layers, TN__MOST_LAYERS);
        return;
    }
    TN_OWN(m, layers, tn_module_list_new());
    for (int i = 0; i < layers && !tn__pending(); i++) {
        tn_transformer_layer *layer = tn__layer_alloc(sizeof(*layer));
        layer_init(layer, decoder, width, heads, o);
        tn_module_append(m->layers, tn__layer_on_heap(layer));
    }
    if (o->final_norm) { TN_OWN(m, norm, tn_layer_norm_new_with(width, norm_of(o))); }
}

void tn_transformer_encoder_init(tn_transformer_encoder *m, int64_t width, int heads, int layers,
                                 tn_transformer_options options) {
    stack_init(m, false, width, heads, layers, &options);
}

void tn_transformer_decoder_init(tn_transformer_decoder *m, int64_t width, int heads, int layers,
                                 tn_transformer_options options) {
    stack_init(m, true, width, heads, layers, &options);
}

TN__LAYER_NEW(transformer_encoder, tn_transformer, (int64_t width, int heads, int layers),
              (width, heads, layers))

TN__LAYER_NEW(transformer_decoder, tn_transformer, (int64_t width, int heads, int layers),
              (width, heads, layers))

/* ---- Both ------------------------------------------------------------------------------------ */

/* (src, tgt, src mask, tgt mask, memory mask, src padding, tgt padding, memory padding) */
static tn_values transformer_forward(tn_module *self, tn_values in, void *context) {
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
    if (entry->layout.whole.ndim > 1) { tn_init_xavier_uniform(*entry->field, 1.0); }
    return true;
}

void tn_transformer_init(tn_transformer *m, int64_t width, int heads, int encoder_layers,
                         int decoder_layers, tn_transformer_options o) {
    if (!tn__layer_begin(m, sizeof(*m), "transformer", NULL, transformer_forward) ||
        !tn__layer_options(m, o.from_defaults, "tn_transformer")) {
        return;
    }
    o.final_norm = true;
    tn_transformer_options encoder = o;
    encoder.causal = false;
    TN_OWN(m, encoder, tn_transformer_encoder_new_with(width, heads, encoder_layers, encoder));
    TN_OWN(m, decoder, tn_transformer_decoder_new_with(width, heads, decoder_layers, o));
    if (!tn__pending()) { tn_module_each(m, (tn_walk){0}, init_matrix, NULL); }
}

TN__LAYER_NEW(transformer, tn_transformer,
              (int64_t width, int heads, int encoder_layers, int decoder_layers),
              (width, heads, encoder_layers, decoder_layers))
