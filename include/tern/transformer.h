/* Attention, the blocks around it, and transformers with an encoder and a decoder. Whole language
 * models are in models.h.
 */
#ifndef TERN_TRANSFORMER_H
#define TERN_TRANSFORMER_H

#include "layers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Attention ------------------------------------------------------------------------------- */

/* Keys and values of earlier positions, to generate text one position at a time.
 *
 *     TN_NO_GRAD;
 *     tn_cache_begin(&gpt, (tn_attention_cache_options){.batch = 1, .length = 1024});
 *     ...                                  // each call: the tokens after those of earlier calls
 *     tn_cache_end(&gpt);
 *
 * begin gives every attention of m and below an empty cache, replacing any old one. With a cache,
 * and while nothing is recorded (TN_NO_GRAD), x holds the next T positions, which also attend to
 * those before: masks are then (…, T, S) with S = positions before + T. Another batch size, or a
 * position beyond `length`, is TN_EVALUE. rewind keeps the first `filled` positions of each cache
 * (0: empty; more than it holds is TN_EVALUE). end takes NULL, and works while an error is pending.
 * The tensors are allocated by the first call, which may raise TN_ENOMEM.
 *
 * To batch sequences of different lengths, pad the shorter ones on the left: with a mask (B, 1, 1,
 * S) that is false at the padding, and positions that begin after it (models.h). */
typedef struct tn_attention_cache_options {
    int64_t batch;  /* sequences in every call */
    int64_t length; /* maximum number of positions */
} tn_attention_cache_options;
typedef struct tn_kv_cache {
    tn_tensor *k, *v;      /* (B, G, length, D) scratch buffers; NULL before the first call */
    int64_t batch, length; /* 0: no cache */
    int64_t filled;        /* positions in it */
} tn_kv_cache;
TN_API tn_status tn_cache_begin(void *m, tn_attention_cache_options options);
TN_API tn_status tn_cache_rewind(void *m, int64_t filled);
TN_API void tn_cache_end(void *m);

/* Self-attention with one projection to q, k, v and one back: x (B, T, C) -> (B, T, C). Names are
 * GPT-2's: c_attn, c_proj. With tn_call_values a second input is a mask: bool, broadcasts to (B, H,
 * T, S), true where a position may be seen; a third, positions, is ignored. */
typedef struct tn_self_attention_options {
    int heads;
    bool causal;    /* true */
    bool bias;      /* true */
    double dropout; /* 0: of the result */
    tn_dtype dtype;
    bool from_defaults;
} tn_self_attention_options;
typedef struct tn_self_attention {
    tn_module base;
    tn_linear c_attn, c_proj;
    tn_dropout drop;
    int heads;
    bool causal;
    tn_kv_cache cache;
} tn_self_attention;
TN_API tn_self_attention_options tn_self_attention_defaults(void);
TN_API void tn_self_attention_init(tn_self_attention *m, int64_t width,
                                   tn_self_attention_options options);

/* Between the two linears of a block. */
typedef enum tn_activation {
    TN_ACT_GELU,
    TN_ACT_GELU_TANH,
    TN_ACT_RELU,
    TN_ACT_SILU
} tn_activation;

/* c_proj(activation(c_fc(x))): (…, C) -> (…, C). */
typedef struct tn_mlp_options {
    int64_t hidden;           /* 0: 4 width */
    bool bias;                /* true */
    double dropout;           /* 0: on the result */
    tn_activation activation; /* TN_ACT_GELU_TANH */
    tn_dtype dtype;
    bool from_defaults;
} tn_mlp_options;
typedef struct tn_mlp {
    tn_module base;
    tn_linear c_fc, c_proj;
    tn_dropout drop;
    tn_activation activation;
} tn_mlp;
TN_API tn_mlp_options tn_mlp_defaults(void);
TN_API void tn_mlp_init(tn_mlp *m, int64_t width, tn_mlp_options options);

/* Self-attention whose heads share keys and values in groups, with rotary positions: x (B, T, C) ->
 * (B, T, C). Names are Llama's: q_proj, k_proj, v_proj, o_proj. Ainslie et al. 2023,
 * arXiv:2305.13245. With tn_call_values a second input is a mask, as in tn_self_attention, and a
 * third is positions, (T) or (B, T), i64 or i32; without it 0, 1, …, or those after what the cache
 * holds. */
typedef struct tn_grouped_attention_options {
    int heads;          /* 1 */
    int kv_heads;       /* 0: heads; must divide heads */
    int64_t head_width; /* 0: width / heads; even */
    bool causal;        /* true */
    bool bias;          /* false */
    tn_rotary_options rotary;
    tn_dtype dtype;
    bool from_defaults;
} tn_grouped_attention_options;
typedef struct tn_grouped_attention {
    tn_module base;
    tn_linear q_proj, k_proj, v_proj, o_proj;
    int64_t head_width;
    bool causal;
    tn_rotary_options rotary;
    tn_kv_cache cache;
} tn_grouped_attention;
TN_API tn_grouped_attention_options tn_grouped_attention_defaults(void);
TN_API void tn_grouped_attention_init(tn_grouped_attention *m, int64_t width,
                                      tn_grouped_attention_options options);

/* down_proj(silu(gate_proj(x)) up_proj(x)): (…, C) -> (…, C). Shazeer 2020, arXiv:2002.05202. */
typedef struct tn_gated_mlp_options {
    bool bias; /* false */
    tn_dtype dtype;
    bool from_defaults;
} tn_gated_mlp_options;
typedef struct tn_gated_mlp {
    tn_module base;
    tn_linear gate_proj, up_proj, down_proj;
} tn_gated_mlp;
TN_API tn_gated_mlp_options tn_gated_mlp_defaults(void);
TN_API void tn_gated_mlp_init(tn_gated_mlp *m, int64_t width, int64_t hidden,
                              tn_gated_mlp_options options);

/* Attention of a query's positions to those of a key and a value: query (B, T, C), key (B, S,
 * kdim), value (B, S, vdim) -> (B, T, C). Names are those of PyTorch's MultiheadAttention; the
 * batch comes first, as with batch_first. Vaswani et al. 2017, arXiv:1706.03762.
 *
 *     y = tn_call(m, x);                                       // self-attention
 *     y = TN_CALL(m, query, key, value);
 *     y = TN_CALL(m, query, key, value, key_padding_mask, mask);
 *
 * Masks are bool and, as in PyTorch but not in tn_attention, TRUE WHERE A KEY IS HIDDEN:
 * key_padding_mask (B, S); mask (T, S), (B heads, T, S) or anything that broadcasts to (B, heads,
 * T, S). The weights are not returned. Where everything is hidden, attention gives zeros (PyTorch:
 * NaN). */
typedef struct tn_multi_head_attention_options {
    double dropout;     /* 0: of the weights */
    bool bias;          /* true */
    int64_t kdim, vdim; /* 0: C */
    bool causal;        /* false; true: query i sees keys up to i + S - T */
    tn_dtype dtype;
    bool from_defaults;
} tn_multi_head_attention_options;
typedef struct tn_multi_head_attention {
    tn_module base;
    tn_tensor *in_proj_weight; /* (3 C, C): of query, key and value; NULL if kdim or vdim … */
    tn_tensor *q_proj_weight, *k_proj_weight,
        *v_proj_weight;      /* … differ from C; else these are NULL */
    tn_tensor *in_proj_bias; /* (3 C) or NULL: starts at 0 */
    tn_linear out_proj;
    int heads;
    bool causal;
    double dropout;
} tn_multi_head_attention;
TN_API tn_multi_head_attention_options tn_multi_head_attention_defaults(void);
TN_API void tn_multi_head_attention_init(tn_multi_head_attention *m, int64_t width, int heads,
                                         tn_multi_head_attention_options options);
TN_API tn_multi_head_attention *tn_multi_head_attention_new(int64_t width, int heads);
TN_API tn_multi_head_attention *tn_multi_head_attention_new_with(
    int64_t width, int heads, tn_multi_head_attention_options options);

/* (length, length), true where position i must not see position j > i: a mask for these modules. */
TN_API tn_tensor *tn_causal_mask(int64_t length);

/* (length, width): sin(t r) and cos(t r), interleaved, at position t, for rates r from 1 down to
 * about 1/10000 (arXiv:1706.03762, 3.5). Add it to embeddings. */
TN_API tn_tensor *tn_sinusoids(int64_t length, int64_t width, tn_dtype dtype);

/* The encoder and decoder of PyTorch's Transformer, with its parameters' names; the batch comes
 * first. Inputs are in PyTorch's order; all masks are as above, and optional:
 *
 *     encoder: TN_CALL(m, src, mask, src_key_padding_mask)                        (B, S, C)
 *     decoder: TN_CALL(m, tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask,
 *                      memory_key_padding_mask)                                   (B, T, C)
 *     both:    TN_CALL(m, src, tgt, src_mask, tgt_mask, memory_mask, src_key_padding_mask,
 *                      tgt_key_padding_mask, memory_key_padding_mask)             (B, T, C) */
typedef struct tn_transformer_options {
    int64_t hidden;           /* 2048: dim_feedforward */
    double dropout;           /* 0.1 */
    tn_activation activation; /* TN_ACT_RELU */
    double eps;               /* 1e-5: of the norms */
    bool norm_first;          /* false: x = norm(x + f(x)); true: x + f(norm(x)) */
    bool bias;                /* true */
    /* false; true: positions (of the decoder, if there is one) only see themselves and earlier
     * ones, without a mask */
    bool causal;
    bool final_norm; /* false: for a single stack; tn_transformer always has both */
    tn_dtype dtype;
    bool from_defaults;
} tn_transformer_options;
typedef struct tn_transformer_layer {
    tn_module base;
    tn_multi_head_attention self_attn, multihead_attn; /* the second, norm3 and dropout3: … */
    tn_linear linear1, linear2;
    tn_layer_norm norm1, norm2, norm3;
    tn_dropout dropout, dropout1, dropout2, dropout3; /* … only in a decoder's layer */
    bool norm_first;
    tn_activation activation;
} tn_transformer_layer;
typedef tn_transformer_layer tn_transformer_encoder_layer;
typedef tn_transformer_layer tn_transformer_decoder_layer;
typedef struct tn_transformer_stack {
    tn_module base;
    tn_module_list *layers;
    tn_layer_norm *norm; /* or NULL */
} tn_transformer_stack;
typedef tn_transformer_stack tn_transformer_encoder;
typedef tn_transformer_stack tn_transformer_decoder;
typedef struct tn_transformer {
    tn_module base;
    tn_transformer_encoder *encoder;
    tn_transformer_decoder *decoder;
} tn_transformer;
TN_API tn_transformer_options tn_transformer_defaults(void);
TN_API void tn_transformer_encoder_layer_init(tn_transformer_encoder_layer *m, int64_t width,
                                              int heads, tn_transformer_options options);
TN_API void tn_transformer_decoder_layer_init(tn_transformer_decoder_layer *m, int64_t width,
                                              int heads, tn_transformer_options options);
TN_API void tn_transformer_encoder_init(tn_transformer_encoder *m, int64_t width, int heads,
                                        int layers, tn_transformer_options options);
TN_API tn_transformer_encoder *tn_transformer_encoder_new(int64_t width, int heads, int layers);
TN_API tn_transformer_encoder *tn_transformer_encoder_new_with(int64_t width, int heads, int layers,
                                                               tn_transformer_options options);
TN_API void tn_transformer_decoder_init(tn_transformer_decoder *m, int64_t width, int heads,
                                        int layers, tn_transformer_options options);
TN_API tn_transformer_decoder *tn_transformer_decoder_new(int64_t width, int heads, int layers);
TN_API tn_transformer_decoder *tn_transformer_decoder_new_with(int64_t width, int heads, int layers,
                                                               tn_transformer_options options);
TN_API void tn_transformer_init(tn_transformer *m, int64_t width, int heads, int encoder_layers,
                                int decoder_layers, tn_transformer_options options);
TN_API tn_transformer *tn_transformer_new(int64_t width, int heads, int encoder_layers,
                                          int decoder_layers);
TN_API tn_transformer *tn_transformer_new_with(int64_t width, int heads, int encoder_layers,
                                               int decoder_layers, tn_transformer_options options);

#ifdef __cplusplus
}
#endif
#endif
