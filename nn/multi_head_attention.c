/* multi_head_attention: the positions of a query attend to those of a key and a value (Vaswani et
 * al. 2017, arXiv:1706.03762), with the parameters of PyTorch's MultiheadAttention
 *
 *     q, k, v = query Wq^T + bq, key Wk^T + bk, value Wv^T + bv     (B, T, C), (B, S, C), (B, S, C)
 *     y = out_proj(attention(q, k, v))                              (B, T, C)
 *
 * Wq, Wk and Wv are stacked in in_proj_weight, so those that share an input are one product: all
 * three in self-attention, k and v where key and value are one tensor.
 */
#include "nn/attention.h"
#include "nn/call.h"
#include "nn/layer.h"

#include <math.h>
#include <stdio.h>

/* ---- Projections ----------------------------------------------------------------------------- */

/* The rows of q, k or v (0, 1, 2) in a stacked tensor; NULL stays NULL. */
static tn_tensor *rows_of(tn_tensor *whole, int first, int count) {
    if (!whole) { return NULL; }
    int64_t width = tn_size(whole, 0) / 3;
    return tn_narrow(whole, 0, first * width, count * width);
}

/* x times the rows of `count` projections, beginning with `first`: (B, T, count C). */
static tn_tensor *project_rows(tn_multi_head_attention *m, tn_tensor *x, int first, int count) {
    tn_tensor *separate[] = {m->q_proj_weight, m->k_proj_weight, m->v_proj_weight};
    tn_tensor *weight =
        m->in_proj_weight ? rows_of(m->in_proj_weight, first, count) : separate[first];
    return tn_linear_op(x, weight, rows_of(m->in_proj_bias, first, count));
}

/* (B, T, C) -> (B, H, T, D) */
static tn_tensor *split_heads(tn_tensor *x, int heads) {
    if (tn_is_inert(x)) { return x; }
    tn_dims d = tn_shape(x);
    tn_dims parts = TN_DIMS(d.size[0], d.size[1], heads, d.size[2] / heads);
    return tn_transpose(tn_reshape(x, parts), 1, 2);
}

/* q, k and v, split into heads. */
static void project_all(tn_multi_head_attention *m, const tn_values *in, tn_tensor **q,
                        tn_tensor **k, tn_tensor **v) {
    *q = project_rows(m, in->v[0], 0, 1);
    if (m->in_proj_weight && in->v[1] == in->v[2]) {
        tn_tensor *both = project_rows(m, in->v[1], 1, 2), *halves[2] = {both, both};
        if (!tn_is_inert(both)) { tn_split(both, tn_size(both, 2) / 2, 2, halves, 2); }
        *k = halves[0];
        *v = halves[1];
    } else {
        *k = project_rows(m, in->v[1], 1, 1);
        *v = project_rows(m, in->v[2], 2, 1);
    }
    *q = split_heads(*q, m->heads);
    *k = split_heads(*k, m->heads);
    *v = split_heads(*v, m->heads);
}

/* ---- Masks ----------------------------------------------------------------------------------- */

/* False after raising. */
static bool masks_fit(const tn_module *m, const tn_tensor *padding, const tn_tensor *mask) {
    const tn_tensor *both[] = {padding, mask};
    for (int i = 0; i < 2; i++) {
        if (both[i] && tn_dtype_of(both[i]) != TN_BOOL) {
            return tn__fail(TN_EDTYPE, m->kind, "the %s is %s but must be bool (true: hidden)",
                            i == 0 ? "key padding mask" : "mask",
                            tn_dtype_name(tn_dtype_of(both[i])));
        }
    }
    if (padding && tn_ndim(padding) != 2) {
        return tn__fail(TN_ESHAPE, m->kind, "the key padding mask is %s but must be (batch, keys)",
                        tn_shape_text(padding));
    }
    return true;
}

/* Both masks as one that broadcasts to (B, H, T, S), true where hidden; NULL: none. */
static tn_tensor *hidden_of(tn_tensor *padding, tn_tensor *mask, int64_t batch, int heads) {
    if (padding) { padding = tn_unsqueeze(tn_unsqueeze(padding, 1), 1); /* (B, 1, 1, S) */ }
    if (mask && tn_ndim(mask) == 3) {
        mask = tn_reshape(mask, TN_DIMS(batch, heads, tn_size(mask, 1), tn_size(mask, 2)));
    }
    return padding && mask ? tn_where(padding, padding, mask) : padding ? padding : mask;
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Made of operations: dropout applies to the weights themselves, as in PyTorch. */
static tn_tensor *attend_dropping(const tn_multi_head_attention *m, tn_tensor *q, tn_tensor *k,
                                  tn_tensor *v, tn_tensor *hidden) {
    if (tn_is_inert(q) || tn_is_inert(k) || tn_is_inert(v)) { return tn_inert(); }
    int64_t T = tn_size(q, 2), S = tn_size(k, 2);
    tn_tensor *scores = tn_matmul(tn_mul_scalar(q, 1.0 / sqrt((double)tn_size(q, 3))), tn_t(k));
    if (m->causal) {
        tn_tensor *later = tn_to(tn__later_mask(T, S), tn_device_of(q));
        hidden = hidden ? tn_where(later, later, hidden) : later;
    }
    if (hidden) { /* not -inf: a query that sees nothing gets zeros, not NaN */
        double low = tn_dtype_of(scores) == TN_F16 ? -6e4 : -1e30;
        scores = tn_masked_fill(scores, hidden, low);
    }
    tn_tensor *weights = tn_softmax(scores, -1);
    weights = hidden ? tn_masked_fill(weights, hidden, 0.0) : weights;
    return tn_matmul(tn_dropout_op(weights, m->dropout), v);
}

/* (B, H, T, D) -> (B, T, C) */
static tn_tensor *join_heads(tn_tensor *y) {
    if (tn_is_inert(y)) { return y; }
    tn_dims d = tn_shape(y);
    return tn_reshape(tn_transpose(y, 1, 2), TN_DIMS(d.size[0], d.size[2], d.size[1] * d.size[3]));
}

static tn_tensor *attend_all(tn_multi_head_attention *m, const tn_values *in, tn_tensor *hidden) {
    tn_attention_options options = tn_attention_defaults();
    options.causal = m->causal;
    bool drops = m->base.training && m->dropout > 0.0;
    tn_tensor *seen = hidden && !drops ? tn_eq(hidden, tn_zeros_like(hidden)) : NULL;
    if (!drops && m->in_proj_weight && in->v[0] == in->v[1] && in->v[1] == in->v[2]) {
        return tn_attention_qkv(project_rows(m, in->v[0], 0, 3), m->heads, seen, options);
    }
    tn_tensor *q, *k, *v;
    project_all(m, in, &q, &k, &v);
    return join_heads(drops ? attend_dropping(m, q, k, v, hidden)
                            : tn_attention(q, k, v, seen, options));
}

/* False after raising. An absent key is the query, an absent value the key. */
static bool inputs_fit(const tn_module *m, tn_values *in) {
    for (int i = in->n; i < TN_MAX_VALUES; i++) {
        in->v[i] = NULL;
    }
    if (in->n < 1 || in->n > 5 || !in->v[0] || (!in->v[1] && in->v[2])) {
        return tn__fail(TN_EVALUE, m->kind,
                        "the inputs are query, key, value, key padding mask and mask (%d given)",
                        in->n);
    }
    in->v[1] = in->v[1] ? in->v[1] : in->v[0];
    in->v[2] = in->v[2] ? in->v[2] : in->v[1];
    static const char *const names[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        if (tn_ndim(in->v[i]) != 3) {
            return tn__fail(TN_ESHAPE, m->kind,
                            "the %s is %s but must be (batch, positions, width)", names[i],
                            tn_shape_text(in->v[i]));
        }
    }
    return masks_fit(m, in->v[3], in->v[4]);
}

static tn_values multi_head_forward(tn_module *self, tn_values in, void *context) {
    tn_multi_head_attention *m = (tn_multi_head_attention *)self;
    if (!inputs_fit(self, &in)) { return tn__no_values(); }
    tn_tensor *hidden = hidden_of(in.v[3], in.v[4], tn_size(in.v[0], 0), m->heads);
    return tn_values_of(tn_call(&m->out_proj, attend_all(m, &in, hidden)), NULL);
}

/* ---- Building -------------------------------------------------------------------------------- */

static const tn_field multi_head_fields[] = {
    TN_FIELD(tn_multi_head_attention, heads),
    TN_FIELD(tn_multi_head_attention, causal),
    TN_FIELD_AS("dropout", tn_multi_head_attention, dropout, .training = true),
    {0},
};

tn_multi_head_attention_options tn_multi_head_attention_defaults(void) {
    return (tn_multi_head_attention_options){.bias = true, .dtype = TN_F32, .from_defaults = true};
}

/* Xavier initialisation, as in PyTorch. */
static void add_projection(tn_multi_head_attention *m, const char *name, tn_tensor **field,
                           int64_t out, int64_t in, tn_dtype dtype) {
    tn_tensor *weight = tn_empty(TN_DIMS(out, in), dtype);
    tn_init_xavier_uniform(weight, 1.0);
    tn_module_param(m, name, field, weight);
}

void tn_multi_head_attention_init(tn_multi_head_attention *m, int64_t width, int heads,
                                  tn_multi_head_attention_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "multi_head_attention", NULL, multi_head_forward) ||
        !tn__layer_options(m, options.from_defaults, "tn_multi_head_attention")) {
        return;
    }
    int64_t kdim = options.kdim ? options.kdim : width, vdim = options.vdim ? options.vdim : width;
    if (!TN__LAYER_FITS(m, {"width", width, 1, INT64_MAX / 3}, {"heads", heads, 1, 0},
                        {"kdim", kdim, 1, 0}, {"vdim", vdim, 1, 0}) ||
        !tn__layer_multiple(m, "width", width, "heads", heads) ||
        !tn__layer_probability(m, "dropout", options.dropout)) {
        return;
    }
    TN_SCOPE;
    m->base.fields = multi_head_fields;
    m->heads = heads;
    m->causal = options.causal;
    m->dropout = options.dropout;
    if (kdim == width && vdim == width) {
        add_projection(m, "in_proj_weight", &m->in_proj_weight, 3 * width, width, options.dtype);
    } else {
        add_projection(m, "q_proj_weight", &m->q_proj_weight, width, width, options.dtype);
        add_projection(m, "k_proj_weight", &m->k_proj_weight, width, kdim, options.dtype);
        add_projection(m, "v_proj_weight", &m->v_proj_weight, width, vdim, options.dtype);
    }
    tn_module_param(m, "in_proj_bias", &m->in_proj_bias,
                    options.bias ? tn_zeros(TN_DIMS(3 * width), options.dtype) : NULL);
    tn_linear_options linear = TN_WITH(tn_linear, .bias = options.bias, .dtype = options.dtype);
    tn_linear_init(&m->out_proj, width, width, linear);
    TN_ADD(m, out_proj);
    if (m->out_proj.bias) { tn_init_constant(m->out_proj.bias, 0.0); }
}

TN__LAYER_NEW(multi_head_attention, tn_multi_head_attention, (int64_t width, int heads),
              (width, heads))
