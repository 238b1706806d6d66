/* grouped_attention: self-attention whose heads share keys and values in groups (Ainslie et al.
 * 2023, arXiv:2305.13245), with rotary positions
 *
 *     q, k, v = q_proj(x), k_proj(x), v_proj(x)       (B, T, H D), (B, T, G D), (B, T, G D)
 *     q, k = rotary(q, positions), rotary(k, positions)
 *     y = o_proj(attention(q, k, v))                  (B, T, C)
 *
 * With a cache (nn/cache.c) k, already rotated, and v are appended to those of earlier calls.
 */
#include "nn/attention.h"
#include "nn/cache.h"
#include "nn/call.h"
#include "nn/describe.h"
#include "nn/layer.h"
#include "ops/nn/rotary.h"

#include <stdio.h>

/* (B, T, heads D) -> (B, heads, T, D), for this rank's heads */
static tn_tensor *split_heads(const tn_grouped_attention *m, tn_tensor *x) {
    if (tn_is_inert(x)) { return x; }
    tn_dims d = tn_shape(x);
    tn_dims heads = TN_DIMS(d.size[0], d.size[1], d.size[2] / m->head_width, m->head_width);
    return tn_transpose(tn_reshape(x, heads), 1, 2);
}

/* q, k and v of attention: k and v with those of earlier calls. False after raising. */
static bool rotate_projections(tn_grouped_attention *m, tn_tensor *x, tn_tensor *positions,
                               tn_tensor **q, tn_tensor **k, tn_tensor **v) {
    tn_linear *projections[] = {&m->q_proj, &m->k_proj, &m->v_proj};
    tn_tensor *y[3];
    tn__linears(projections, 3, x, y);
    *q = split_heads(m, y[0]);
    *k = split_heads(m, y[1]);
    *v = split_heads(m, y[2]);
    if (!tn__cache_open(&m->cache)) {
        *q = tn_rotary(*q, positions, m->rotary);
        *k = tn_rotary(*k, positions, m->rotary);
        return true;
    }
    tn__cache_place place;
    if (!tn__cache_reserve(m, &m->cache, *k, *v, &place)) { return false; }
    tn_tensor *rotated =
        tn__rotary_append(*q, *k, *v, positions, &m->rotary, place.new_k, place.new_v);
    if (!rotated) {
        rotated = tn_rotary(*q, positions, m->rotary);
        tn_copy_(place.new_k, tn_rotary(*k, positions, m->rotary));
        tn_copy_(place.new_v, *v);
    }
    *q = rotated;
    *k = place.all_k;
    *v = place.all_v;
    return !tn__pending();
}

static tn_tensor *attend_grouped(tn_grouped_attention *m, const tn__sequences *s) {
    tn_tensor *x = s->x, *positions = s->positions;
    int64_t B = tn_size(x, 0), T = tn_size(x, 1), start = tn__cache_start(&m->cache);
    if (!positions) {
        positions = tn__arange(tn_device_of(x), (double)start, (double)(start + T), 1.0, TN_I64);
    }
    tn_tensor *q, *k, *v;
    if (!rotate_projections(m, x, positions, &q, &k, &v)) { return tn_inert(); }
    tn_attention_options options = tn_attention_defaults();
    options.causal = m->causal;
    tn_tensor *y = tn__attend(&m->base, q, k, v, s->mask, options); /* (B, H, T, D) */
    if (tn_is_inert(y)) { return y; }
    tn__cache_accept(&m->cache, T);
    return tn_reshape(tn_transpose(y, 1, 2), TN_DIMS(B, T, tn_size(y, 1) * m->head_width));
}

static tn_values grouped_attention_forward(tn_module *self, tn_values in, void *context) {
    tn_grouped_attention *m = (tn_grouped_attention *)self;
    tn__sequences s;
    if (!tn__sequences_of(self, in, &s)) { return tn__no_values(); }
    tn_tensor *y = attend_grouped(m, &s);
    return tn_values_of(tn_call(&m->o_proj, y), NULL);
}

const tn_field tn__grouped_attention_fields[] = {
    TN_FIELD_AS("head_width", tn_grouped_attention, head_width, .least = 1, .most = INT32_MAX),
    TN_FIELD(tn_grouped_attention, causal),
    TN_FIELD_AS("theta", tn_grouped_attention, rotary.theta),
    TN_FIELD_AS("factor", tn_grouped_attention, rotary.factor),
    TN_FIELD_AS("low_freq_factor", tn_grouped_attention, rotary.low_freq_factor),
    TN_FIELD_AS("high_freq_factor", tn_grouped_attention, rotary.high_freq_factor),
    TN_FIELD_AS("original_context", tn_grouped_attention, rotary.original_context, .least = 1,
                .most = INT32_MAX),
    {0},
};

tn_grouped_attention_options tn_grouped_attention_defaults(void) {
    return (tn_grouped_attention_options){.heads = 1,
                                          .causal = true,
                                          .rotary = tn_rotary_defaults(),
                                          .dtype = TN_F32,
                                          .from_defaults = true};
}

/* False after raising. */
static bool options_fit(void *m, int64_t width, const tn_grouped_attention_options *o,
                        int64_t head_width, int kv_heads) {
    if (!TN__LAYER_FITS(m, {"width", width, 1, 0}, {"heads", o->heads, 1, 0},
                        {"kv_heads", kv_heads, 1, 0}) ||
        !tn__layer_multiple(m, "heads", o->heads, "kv_heads", kv_heads)) {
        return false;
    }
    if (o->head_width == 0 && width % o->heads != 0) {
        return tn__layer_refuse(
            m, TN_EVALUE,
            "width is %lld but heads is %d (width must be a multiple, or head_width "
            "given)",
            (long long)width, o->heads);
    }
    if (head_width < 1 || head_width % 2 != 0 || head_width > INT64_MAX / o->heads) {
        return tn__layer_refuse(
            m, TN_EVALUE, "%s is %lld (it must be even, from 2 to 2^63 / heads)",
            o->head_width ? "head_width" : "width / heads", (long long)head_width);
    }
    return true;
}

void tn_grouped_attention_init(tn_grouped_attention *m, int64_t width,
                               tn_grouped_attention_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "grouped_attention", NULL, grouped_attention_forward) ||
        !tn__layer_options(m, options.from_defaults, "tn_grouped_attention")) {
        return;
    }
    int kv_heads = options.kv_heads ? options.kv_heads : options.heads;
    int64_t head_width = options.head_width  ? options.head_width
                         : options.heads > 0 ? width / options.heads
                                             : 0;
    if (!options_fit(m, width, &options, head_width, kv_heads)) { return; }
    m->base.fields = tn__grouped_attention_fields;
    m->head_width = head_width;
    m->causal = options.causal;
    m->rotary = options.rotary;
    tn_linear_options linear = TN_WITH(tn_linear, .bias = options.bias, .dtype = options.dtype);
    tn_linear_init(&m->q_proj, width, options.heads * head_width, linear);
    tn_linear_init(&m->k_proj, width, kv_heads * head_width, linear);
    tn_linear_init(&m->v_proj, width, kv_heads * head_width, linear);
    tn_linear_init(&m->o_proj, options.heads * head_width, width, linear);
    tn_module_add(m, "q_proj", &m->q_proj);
    tn_module_add(m, "k_proj", &m->k_proj);
    tn_module_add(m, "v_proj", &m->v_proj);
    tn_module_add(m, "o_proj", &m->o_proj);
    tn__cache_register(m, &m->cache);
}
