/* self_attention: softmax(q k^T / sqrt(D)) v over the positions of x (B, T, C), C = heads D
 *
 *     q, k, v = c_attn(x)                      one product gives all three, side by side:
 *                                              (B, T, 3 C)
 *     y = c_proj(attention(q, k, v))           (B, T, C)
 *
 * With a cache, k and v of the new positions are written behind those of earlier calls, and the new
 * q attends to all of them. A cache is read only while nothing is recorded: its contents have no
 * history to differentiate.
 */
#include "autograd/mode.h"
#include "nn/module.h"

#include <stdio.h>

/* The next T positions of one cache: (B, H, T, D). */
static tn_tensor *next_positions(const tn_self_attention *m, tn_tensor *cache, int64_t count) {
    return tn_narrow(cache, 2, m->cached, count);
}

/* qkv (B, T, 3 C) -> (B, T, C) */
static tn_tensor *attend_cached(tn_self_attention *m, tn_tensor *qkv, tn_tensor *mask,
                                tn_attention_options options) {
    int64_t B = tn_size(qkv, 0), T = tn_size(qkv, 1), C = tn_size(qkv, 2) / 3, H = m->heads;
    int64_t batch = tn_size(m->cache_k, 0), length = tn_size(m->cache_k, 2);
    if (B != batch || T > length - m->cached) {
        tn__raise(TN_EVALUE, "self_attention",
                  "x has %lld sequences of %lld positions but the cache is for %lld, and has room "
                  "for %lld of %lld positions",
                  (long long)B, (long long)T, (long long)batch, (long long)(length - m->cached),
                  (long long)length);
        return tn_inert();
    }
    tn_tensor *parts = tn_permute(tn_reshape(qkv, TN_DIMS(B, T, 3, H, C / H)),
                                  TN_DIMS(2, 0, 3, 1, 4)); /* (3, B, H, T, D) */
    tn_copy_(next_positions(m, m->cache_k, T), tn_select(parts, 0, 1));
    tn_copy_(next_positions(m, m->cache_v, T), tn_select(parts, 0, 2));
    tn_tensor *k = tn_narrow(m->cache_k, 2, 0, m->cached + T),
              *v = tn_narrow(m->cache_v, 2, 0, m->cached + T);
    tn_tensor *y = tn_attention(tn_select(parts, 0, 0), k, v, mask, options); /* (B, H, T, D) */
    if (!tn__pending()) {
        m->cached += T;
    }
    return tn_reshape(tn_transpose(y, 1, 2), TN_DIMS(B, T, C));
}

static tn_values self_attention_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    tn_self_attention *m = (tn_self_attention *)self;
    if (in.n < 1 || in.n > 2 || !in.v[0]) {
        tn__raise(TN_EVALUE, "self_attention",
                  "the inputs are x and, if there is one, a mask (%d are given)", in.n);
        return tn__no_values();
    }
    tn_tensor *x = in.v[0], *mask = in.n > 1 ? in.v[1] : NULL;
    if (tn_ndim(x) != 3) {
        tn__raise(TN_ESHAPE, "self_attention", "x is %s but must be (batch, positions, width)",
                  tn_shape_text(x));
        return tn__no_values();
    }
    tn_attention_options options = tn_attention_defaults();
    options.causal = m->causal;
    tn_tensor *qkv = tn_call(&m->c_attn, x), *y;
    if (m->cache_k && !tn_is_inert(qkv) && !tn__will_record()) {
        y = attend_cached(m, qkv, mask, options);
    } else {
        y = tn_attention_qkv(qkv, m->heads, mask, options);
    }
    return tn_values_of(tn_call(&m->drop, tn_call(&m->c_proj, y)), NULL);
}

static int self_attention_describe(const tn_module *self, char *text, size_t room) {
    const tn_self_attention *m = (const tn_self_attention *)self;
    return snprintf(text, room, "heads %d, causal %d", m->heads, m->causal);
}

tn_self_attention_options tn_self_attention_defaults(void) {
    return (tn_self_attention_options){.heads = 1, .causal = true, .bias = true, .dtype = TN_F32};
}

void tn_self_attention_init(tn_self_attention *m, int64_t width,
                            tn_self_attention_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "self_attention", NULL, self_attention_forward)) {
        return;
    }
    if (width < 1 || width > INT64_MAX / 3 || options.heads < 1 || width % options.heads != 0) {
        tn__layer_refuse(m, TN_EVALUE,
                         "width is %lld and heads %d (width must be a multiple of heads)",
                         (long long)width, options.heads);
        return;
    }
    m->base.describe = self_attention_describe;
    m->heads = options.heads;
    m->causal = options.causal;
    tn_linear_options linear = {.bias = options.bias, .dtype = options.dtype};
    tn_linear_init(&m->c_attn, width, 3 * width, linear);
    tn_linear_init(&m->c_proj, width, width, linear);
    tn_dropout_init(&m->drop, options.dropout);
    tn_module_add(m, "c_attn", &m->c_attn);
    tn_module_add(m, "c_proj", &m->c_proj);
    tn_module_add(m, "drop", &m->drop);
    tn_module_scratch(m, "cache_k", &m->cache_k, NULL);
    tn_module_scratch(m, "cache_v", &m->cache_v, NULL);
}

tn_status tn_self_attention_cache(tn_self_attention *m, tn_attention_cache_options options) {
    if (!tn__module_of(m, "self_attention_cache") || tn__pending()) {
        return tn_error();
    }
    if (m->base.state == TN__MODULE_BROKEN) {
        return tn__raise(TN_ESTATE, "self_attention_cache", "the module is not complete");
    }
    if (options.length < 0 || (options.length > 0 && options.batch < 1)) {
        return tn__raise(TN_EVALUE, "self_attention_cache", "batch is %lld and length %lld",
                         (long long)options.batch, (long long)options.length);
    }
    TN_SCOPE;
    tn_tensor *k = NULL, *v = NULL;
    if (options.length > 0) {
        tn_tensor *weight = m->c_attn.weight;
        tn_dims dims =
            TN_DIMS(options.batch, m->heads, options.length, tn_size(weight, 1) / m->heads);
        tn_dtype dtype = tn_module_compute_dtype(m, tn_dtype_of(weight));
        k = tn_empty_on(tn_device_of(weight), dims, dtype);
        v = tn_empty_on(tn_device_of(weight), dims, dtype);
        if (tn_is_inert(k) || tn_is_inert(v)) {
            return tn_error();
        }
    }
    tn_module_set_buffer(m, "cache_k", k);
    tn_module_set_buffer(m, "cache_v", v);
    m->cached = 0;
    return tn_error();
}
