/* Whole models: language models as sums of nn's parts, with Hugging Face's parameter names.
 *
 *     tn_gpt gpt;
 *     tn_gpt_init(&gpt, tn_gpt_defaults());
 *     tn_tensor *loss = tn_gpt_loss(&gpt, tokens, targets);
 *
 * Read next: models/gpt.c.
 */
#ifndef TERN_MODELS_H
#define TERN_MODELS_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* tokens (B, T) i64 or i32 -> logits (B, T, vocab): tn_call(&gpt, tokens). T is at most context.
 * The mean loss of predicting `targets` (B, T; -100 is ignored): */
TN_API tn_tensor *tn_gpt_loss(tn_gpt *m, tn_tensor *tokens, tn_tensor *targets);

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
