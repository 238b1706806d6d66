/* Whole models: language models as sums of nn's parts, with Hugging Face's parameter names.
 *
 *     tn_gpt gpt;
 *     tn_gpt_init(&gpt, tn_gpt_defaults());
 *     tn_tensor *loss = tn_lm_loss(&gpt, tokens, targets);
 *
 * Read next: models/gpt.c.
 */
#ifndef TERN_MODELS_H
#define TERN_MODELS_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Every language model -------------------------------------------------------------------- */

/* A language model takes tokens (B, T), i64 or i32, and gives logits (B, T, vocab):
 * tn_call(&model, tokens). With tn_call_values it takes (tokens, positions, mask), where the last
 * two may be NULL or missing:
 *
 *     positions: (B, T) or (T), i64 or i32, below `context`. NULL: 0, 1, …, or those behind what
 *         the caches hold (tn_cache_begin)
 *     mask: bool, broadcasts to (B, heads, T, S), true where a position may be seen, in addition to
 *         what comes later being unseen. S is T, and with caches what they hold and T
 *
 * Without positions, T (behind what the caches hold) is at most `context`. */

typedef struct tn_lm_shape {
    int64_t vocab, context;
    int layers, heads, kv_heads; /* kv_heads: of keys and values, which heads share */
    int64_t width, parameters;   /* parameters: elements, tied ones once */
} tn_lm_shape;
/* TN_EVALUE, and zeros, where m is no language model of this header. */
TN_API tn_status tn_lm_shape_of(void *m, tn_lm_shape *shape);

/* The mean loss of predicting `targets` (B, T; -100 is ignored). m: any module whose tn_call gives
 * logits (B, T, vocab). */
TN_API tn_tensor *tn_lm_loss(void *m, tn_tensor *tokens, tn_tensor *targets);

/* ---- GPT-2 (Radford et al. 2019) ------------------------------------------------------------- */

/* x + attn(ln_1(x)), then x + mlp(ln_2(x)): GPT-2's block and its names (ln_1, attn, ln_2,
 * mlp.c_fc, mlp.c_proj). A second input is the mask of attn. */
typedef struct tn_block_options {
    int heads;
    int64_t hidden;           /* 0: 4 width */
    bool causal;              /* true */
    bool bias;                /* true: of the linears and norms */
    double dropout;           /* 0 */
    tn_activation activation; /* TN_ACT_GELU_TANH */
    tn_dtype dtype;
} tn_block_options;
typedef struct tn_block {
    tn_module base;
    tn_layer_norm ln_1, ln_2;
    tn_self_attention attn;
    tn_mlp mlp;
} tn_block;
TN_API tn_block_options tn_block_defaults(void);
TN_API void tn_block_init(tn_block *m, int64_t width, tn_block_options options);

typedef struct tn_gpt_options {
    int64_t vocab, context;
    int layers, heads;
    int64_t width;
    bool bias;                /* true: GPT-2's; the character recipe has none */
    double dropout;           /* 0 */
    tn_activation activation; /* TN_ACT_GELU_TANH */
    tn_dtype dtype;
} tn_gpt_options;
typedef struct tn_gpt {
    tn_module base;
    tn_gpt_options options;
    tn_embedding wte, wpe;
    tn_dropout drop;
    tn_block *h; /* [layers], owned */
    tn_layer_norm ln_f;
} tn_gpt;
TN_API tn_gpt_options tn_gpt_defaults(void); /* GPT-2 124M */

/* Weights normal(0, 0.02), the projections back into the residual stream (c_proj) by
 * 0.02 / sqrt(2 layers), biases 0; the classifier is wte.weight. Hugging Face's GPT-2 files hold
 * the weights of c_attn, c_fc and c_proj as (in, out): transpose them on the way. */
TN_API void tn_gpt_init(tn_gpt *m, tn_gpt_options options);

/* Continues tokens[n] by `count`, drawn from g (NULL: the thread's default) at `temperature` (0:
 * the most likely) among the `top_k` most likely (0: all), into out[count]. Dropout stays as the
 * modules have it: tn_module_train(m, false) first. Uses the attention caches and leaves none. When
 * the context is full, it goes on from the last context / 2 tokens, which are read again. */
TN_API tn_status tn_gpt_generate(tn_gpt *m, const int64_t *tokens, int64_t n, int64_t count,
                                 double temperature, int top_k, tn_generator *g, int64_t *out);

#ifdef __cplusplus
}
#endif
#endif
