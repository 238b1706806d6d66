/* self_attention: softmax(q k^T / sqrt(D)) v over the positions of x (B, T, C), C = heads D
 *
 *     q, k, v = c_attn(x)                      one product gives all three, side by side:
 *                                              (B, T, 3 C)
 *     y = c_proj(attention(q, k, v))           (B, T, C)
 *
 * With a cache (nn/cache.c), k and v of the new positions are appended to those of earlier calls,
 * and the new q attends to all of them.
 */
#include "nn/attention.h"
#include "nn/cache.h"
#include "nn/call.h"
#include "nn/layer.h"

#include <stdio.h>

/* How many of the heads are here: c_attn has 3 width rows for all of them. */
static int heads_here(const tn_self_attention *m, const tn_tensor *qkv, int64_t width) {
    return tn_is_inert(qkv) ? m->heads : (int)(m->heads * tn_size(qkv, 2) / (3 * width));
}

/* qkv (B, T, 3 C) -> (B, T, C), where C is the width of this rank's H heads. */
static tn_tensor *attend_by_operations(tn_self_attention *m, tn_tensor *qkv, int H, tn_tensor *mask,
                                       tn_attention_options options) {
    int64_t B = tn_size(qkv, 0), T = tn_size(qkv, 1), C = tn_size(qkv, 2) / 3;
    tn_tensor *parts = tn_permute(tn_reshape(qkv, TN_DIMS(B, T, 3, H, C / H)),
                                  TN_DIMS(2, 0, 3, 1, 4)); /* (3, B, H, T, D) */
    tn_tensor *q = tn_select(parts, 0, 0), *k = tn_select(parts, 0, 1), *v = tn_select(parts, 0, 2);
    if (tn__cache_open(&m->cache) && !tn__cache_append(m, &m->cache, &k, &v)) { return tn_inert(); }
    tn_tensor *y = tn__attend(&m->base, q, k, v, mask, options); /* (B, H, T, D) */
    if (tn_is_inert(y)) { return y; }
    tn__cache_accept(&m->cache, T);
    return tn_reshape(tn_transpose(y, 1, 2), TN_DIMS(B, T, C));
}

static tn_values self_attention_forward(tn_module *self, tn_values in, void *context) {
    tn_self_attention *m = (tn_self_attention *)self;
    tn__sequences s;
    if (!tn__sequences_of(self, in, &s)) { return tn__no_values(); }
    tn_attention_options options = tn_attention_defaults();
    options.causal = m->causal;
    tn_tensor *qkv = tn_call(&m->c_attn, s.x);
    int heads = heads_here(m, qkv, tn_size(s.x, 2));
    bool by_operations = tn__cache_open(&m->cache) || self->lists->attend.f;
    tn_tensor *y = by_operations && !tn_is_inert(qkv)
                       ? attend_by_operations(m, qkv, heads, s.mask, options)
                       : tn_attention_qkv(qkv, heads, s.mask, options);
    return tn_values_of(tn_call(&m->drop, tn_call(&m->c_proj, y)), NULL);
}

static const tn_field self_attention_fields[] = {
    TN_FIELD(tn_self_attention, heads),
    TN_FIELD(tn_self_attention, causal),
    {0},
};

tn_self_attention_options tn_self_attention_defaults(void) {
    return (tn_self_attention_options){
        .heads = 1, .causal = true, .bias = true, .dtype = TN_F32, .from_defaults = true};
}

void tn_self_attention_init(tn_self_attention *m, int64_t width,
                            tn_self_attention_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "self_attention", NULL, self_attention_forward) ||
        !tn__layer_options(m, options.from_defaults, "tn_self_attention") ||
        !TN__LAYER_FITS(m, {"width", width, 1, INT64_MAX / 3}, {"heads", options.heads, 1, 0}) ||
        !tn__layer_multiple(m, "width", width, "heads", options.heads)) {
        return;
    }
    m->base.fields = self_attention_fields;
    m->heads = options.heads;
    m->causal = options.causal;
    tn_linear_options linear = TN_WITH(tn_linear, .bias = options.bias, .dtype = options.dtype);
    tn_linear_init(&m->c_attn, width, 3 * width, linear);
    tn_linear_init(&m->c_proj, width, width, linear);
    tn_dropout_init(&m->drop, options.dropout);
    tn_module_add(m, "c_attn", &m->c_attn);
    tn_module_add(m, "c_proj", &m->c_proj);
    tn_module_add(m, "drop", &m->drop);
    tn__cache_register(m, &m->cache);
}
