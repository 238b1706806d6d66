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
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Every language model -------------------------------------------------------------------- */

/* A language model takes tokens (B, T), i64 or i32, and gives logits (B, T, vocab):
 * tn_call(&model, tokens). With tn_call_values it takes (tokens, positions, mask), where the last
 * two may be NULL or missing:
 *
 *     positions: (B, T) or (T), i64 or i32, below `context`. NULL: 0, 1, …, or those after what
 *         the caches hold (tn_cache_begin)
 *     mask: bool, broadcasts to (B, heads, T, S), true where a position may be seen, in addition to
 *         what comes later being unseen. S is T, and with caches what they hold and T
 *
 * Without positions, T (after what the caches hold) is at most `context`.
 *
 * It is a stem, blocks and a top, one after the other, so that a pipeline can take it apart:
 *
 *     stem(tokens, positions) -> x (B, T, C)      positions as above; without them 0, 1, …
 *     block(x, mask, positions) -> x              as many as layers
 *     top(x) -> logits
 *
 * Stem and top are transparent children: no part of a parameter's name. */

typedef struct tn_lm_shape {
    int64_t vocab, context;
    int layers, heads, kv_heads; /* kv_heads: of keys and values, which heads share */
    int64_t width, parameters;   /* parameters: elements, tied ones once */
} tn_lm_shape;
/* TN_EVALUE, and zeros, where m is no language model of this header. */
TN_API tn_status tn_lm_shape_of(void *m, tn_lm_shape *shape);

/* Writes the parts of m, at most `most` of them, in the order of a call. Returns how many there
 * are, layers + 2; 0 after an error (m is no language model). Called by hand they give the bits of
 * a call of m. */
TN_API int tn_lm_parts(void *m, tn_module **parts, int most);

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
    bool from_defaults;
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
    bool from_defaults;
} tn_gpt_options;
/* Ids to (B, T, C): what is before the blocks. */
typedef struct tn_gpt_stem {
    tn_module base;
    tn_embedding wte, wpe;
    tn_dropout drop;
} tn_gpt_stem;
typedef struct tn_gpt_top {
    tn_module base;
    tn_layer_norm ln_f;
    tn_linear lm_head; /* its weight is wte.weight */
} tn_gpt_top;
typedef struct tn_gpt {
    tn_module base;
    tn_gpt_options options;
    tn_gpt_stem stem;
    tn_block *h; /* [layers], owned */
    tn_gpt_top top;
} tn_gpt;
TN_API tn_gpt_options tn_gpt_defaults(void); /* GPT-2 124M */

/* Weights normal(0, 0.02), the projections back into the residual stream (c_proj) by
 * 0.02 / sqrt(2 layers), biases 0; the classifier is wte.weight. Linears are (out, in) as
 * everywhere here; Hugging Face's GPT-2 has them as (in, out), which tn_gpt_load_hf knows. */
TN_API void tn_gpt_init(tn_gpt *m, tn_gpt_options options);

/* ---- Generating ------------------------------------------------------------------------------ */

typedef struct tn_prompt {
    const int32_t *ids;
    int64_t count; /* at least 1 */
} tn_prompt;

/* One more token of one sequence. */
typedef struct tn_generated_token {
    int sequence; /* 0 … n-1 */
    int32_t token;
    int64_t count; /* tokens of the sequence so far, with this one */
    bool last;
    /* With a tokenizer: the bytes that have become certain to stand in the text, which may end
     * inside a character (tn_utf8_put). Those that could begin a stop text are held back. */
    const char *text;
    size_t bytes;
} tn_generated_token;

/* Called for each token as soon as it is there, in the thread that generates. False ends this
 * sequence; an error that it raises ends all. */
typedef bool (*tn_on_token)(const tn_generated_token *token, void *user);

typedef struct tn_generate_options {
    int64_t max_new;           /* 100: tokens of each sequence, unless it stops before */
    int64_t min_new;           /* 0: so many tokens come before anything stops */
    double temperature;        /* 1: logits are divided by it. 0: always the most likely token */
    int64_t top_k;             /* 0: among the k most likely; 0: all */
    double top_p;              /* 1: among the fewest that are this likely together */
    double repetition_penalty; /* 1: tokens that are there already are less likely from 1 on up */
    uint64_t seed;             /* 0 */
    uint64_t first;            /* 0: the number of sequence 0, where there are others of one seed */
    const int32_t *stop_tokens;    /* [stop_token_count]: each is its sequence's last */
    int stop_token_count;          /* 0 */
    const char *const *stop_texts; /* [stop_text_count], with a tokenizer: the text ends before */
    int stop_text_count;           /* 0 */
    const tn_tokenizer *tokenizer; /* NULL: tokens alone, no texts */
    tn_on_token on_token;          /* NULL */
    void *user;
    bool from_defaults;
} tn_generate_options;
TN_API tn_generate_options tn_generate_defaults(void);

typedef enum tn_generated_end {
    TN_ENDED_BY_COUNT, /* max_new */
    TN_ENDED_BY_TOKEN, /* a stop token, the last of ids; it is no part of the text */
    TN_ENDED_BY_TEXT,  /* a stop text, which the text ends before; ids may go beyond */
    TN_ENDED_BY_CALLER /* on_token */
} tn_generated_end;

typedef struct tn_generated {
    tn_ids tokens;
    char *text; /* with a tokenizer: their bytes, and a 0; else NULL */
    size_t bytes;
    tn_generated_end end;
} tn_generated;

/* Continues each of n prompts, whose lengths may differ, all in one batch: out[n], which
 * tn_generated_free clears. m: a language model of this header (tn_lm_shape_of).
 *
 * The steps from logits to a token are Hugging Face's, in this order: repetition penalty (Keskar et
 * al. 2019, arXiv:1909.05858), temperature, top_k, top_p (Holtzman et al. 2019, arXiv:1904.09751).
 * Of equal logits the lower token is more likely for temperature 0, and comes first for top_p;
 * top_k keeps all that are equal to the k-th. A tokenizer with fewer tokens than the model has
 * logits limits those that come.
 *
 * Each draw belongs to (seed, number of the sequence, place in it): the same text for any number of
 * threads, and whichever other sequences are in the batch, up to the rounding of logits.
 *
 * A prompt that is longer than the context is read from its last `context` tokens. A sequence that
 * fills the context continues from its newer half, which is read again: learned positions cannot
 * slide, and rotary ones are taken alike.
 *
 * Memory: keys and values for all positions to come, at most the context; nothing grows with the
 * tokens but `out`. Dropout stays as the modules have it: tn_module_train(m, false) first. The
 * caches of tn_cache_begin are used, and are gone afterwards.
 *
 * TN_EVALUE (no language model, an empty prompt, options outside their domain, a logit that is NaN
 * or infinite, which the message names), TN_EINDEX (a token outside the vocabulary), TN_ENOMEM and
 * what the model raises; out is zeros then. */
TN_API tn_status tn_generate(void *m, const tn_prompt *prompts, int n, tn_generate_options options,
                             tn_generated *out);
TN_API void tn_generated_free(tn_generated *out, int n); /* the contents; leaves zeros */

/* ---- Llama ----------------------------------------------------------------------------------- */

/* Llama (Touvron et al. 2023, arXiv:2302.13971), as of its third version (Grattafiori et al. 2024,
 * arXiv:2407.21783).
 *
 * x + self_attn(input_layernorm(x)), then x + mlp(post_attention_layernorm(x)): Llama's layer and
 * its names. The norms are RMS norms. A second input is the mask of self_attn, a third its
 * positions. */
typedef struct tn_llama_block_options {
    int heads;          /* 1 */
    int kv_heads;       /* 0: as heads */
    int64_t head_width; /* 0: width / heads */
    tn_rotary_options rotary;
    double eps; /* 1e-5: of the norms */
    tn_dtype dtype;
    bool from_defaults;
} tn_llama_block_options;
typedef struct tn_llama_block {
    tn_module base;
    tn_rms_norm input_layernorm, post_attention_layernorm;
    tn_grouped_attention self_attn;
    tn_gated_mlp mlp;
} tn_llama_block;
TN_API tn_llama_block_options tn_llama_block_defaults(void);
TN_API void tn_llama_block_init(tn_llama_block *m, int64_t width, int64_t hidden,
                                tn_llama_block_options options);

typedef struct tn_llama_options {
    int64_t vocab, context;
    int layers, heads, kv_heads; /* kv_heads 0: as heads */
    int64_t width, hidden;       /* hidden: of the MLP */
    int64_t head_width;          /* 0: width / heads */
    tn_rotary_options rotary;
    double eps; /* of the norms */
    bool tied;  /* the classifier is embed_tokens.weight */
    tn_dtype dtype;
    bool from_defaults;
} tn_llama_options;
/* What comes before the blocks, and after them. */
typedef struct tn_llama_stem {
    tn_module base;
    tn_embedding embed_tokens;
} tn_llama_stem;
typedef struct tn_llama_top {
    tn_module base;
    tn_rms_norm norm;
    tn_linear lm_head;
} tn_llama_top;
typedef struct tn_llama {
    tn_module base;
    tn_llama_options options;
    tn_llama_stem stem;
    tn_llama_block *layers; /* [layers], owned */
    tn_llama_top top;
} tn_llama;
TN_API tn_llama_options tn_llama_defaults(void); /* Llama 3.2 1B */

/* Matrices normal(0, 0.02), norms 1. Names are Hugging Face's without the "model." in front:
 * embed_tokens.weight, layers.0.self_attn.q_proj.weight, …, norm.weight, lm_head.weight (unless
 * tied). */
TN_API void tn_llama_init(tn_llama *m, tn_llama_options options);

/* ---- Weights in Hugging Face's folders ------------------------------------------------------- */

/* A folder has config.json, and model.safetensors or model.safetensors.index.json with its parts,
 * as transformers' from_pretrained reads and save_pretrained writes them. Families: gpt ("gpt2"),
 * llama ("llama").
 *
 * Loading reads all of config.json that says what a model computes. What the model here cannot do
 * is an error, TN_EFORMAT, which names the key and its value. Names in the files may have the
 * family's prefix ("transformer.") or not. A head that is tied may be there all the same when it
 * has the embedding's elements, and so may the masks of older files. Names that are missing or too
 * many are TN_EMISMATCH, with the first of both; shapes TN_ESHAPE. Weights in f32, bf16, f16 and
 * f64 become those of the model's dtype. Dropout is 0: what the config says of it is how others
 * trained.
 *
 * No tensor is in memory twice, but those that have to be converted, one at a time. */
typedef struct tn_lm_load_options {
    bool as_stored; /* true: parameters in the dtype of the embedding of tokens in the files */
    tn_dtype dtype; /* otherwise in this one: TN_F32 */
    /* false: the files are read, and what becomes of them later does not matter. true: weights
     * whose bytes in the files are what the model wants, its dtype and (out, in), become views of
     * the mapped files (tn_safetensors_map): nothing is read before it is used, and processes share
     * the memory. Whoever writes to such a file while the model lives changes its weights, and
     * truncating it kills the process (SIGBUS). Training such a model is allowed, and costs the
     * pages that change. Other weights are read as always: GPT-2's linears, which files have as
     * (in, out). */
    bool mmap;
    bool from_defaults;
} tn_lm_load_options;
TN_API tn_lm_load_options tn_lm_load_defaults(void);

/* Initialises m with the options of the folder's model, and gives it the weights. After an error m
 * is finished. */
TN_API tn_status tn_gpt_load_hf(tn_gpt *m, const char *folder, tn_lm_load_options options);
TN_API tn_status tn_llama_load_hf(tn_llama *m, const char *folder, tn_lm_load_options options);
/* The same, of any family: a tn_gpt or tn_llama, for tn_lm_free. NULL after an error. */
TN_API tn_module *tn_lm_load(const char *folder, tn_lm_load_options options);
TN_API void tn_lm_free(void *m); /* finishes it, too; NULL is fine */

/* A model as the folder's config says, in f32, with weights as tn_gpt_init and tn_llama_init draw
 * them, or none yet (TN_DEFER_INIT): to be laid on ranks before tn_lm_load_weights. dropout: of a
 * family that has it (gpt); of another one anything but 0 is TN_EUNSUPPORTED. NULL after an error.
 */
TN_API tn_module *tn_lm_new(const char *folder, double dropout);

/* Weights for a model that is there, which must be the folder's: TN_EMISMATCH names the options
 * that differ, but for dropout. Of a sharded model each rank reads the elements that it has, and no
 * others. After an error nothing has changed, but that parameters without elements
 * (TN_DEFER_INIT) may have some. */
TN_API tn_status tn_lm_load_weights(void *m, const char *folder);

/* Writes a folder that transformers and tn_lm_load read, with the same logits; it is made where it
 * is not there. What it has of a model is replaced, other files (a tokenizer's) stay. Whatever
 * makes a save fail, and whenever its process is killed, the old model is there or the new one,
 * whole. While files change their names the model is that of FOLDER/weights.tmp, a folder of the
 * same kind: it stays when a save ends in between, tn_lm_load reads it, and the next save tidies
 * up.
 *
 * TN_EUNSUPPORTED: a parameter is sharded, or transformers has no such model. A gpt without biases
 * gets some, which are zeros. */
typedef struct tn_lm_save_options {
    int64_t max_part_bytes; /* 5e9: what is larger is written in parts of at most so many bytes */
    /* false. As tn_save writes it, to tern.safetensors beside config.json: every weight as the
     * model has it, so that all of them can be mapped (tn_lm_load_options.mmap). transformers finds
     * no weights in such a folder, and says so; tn_lm_load reads it. Weights that are bytes
     * (tn_quantize) are written in no other way, and come back as bytes. */
    bool plain;
    /* NULL: the folder itself. Another folder whose tokenizer's files come along. Either tells
     * which tokens begin and end texts, for config.json: generation_config.json, the tokenizer,
     * an older config.json. Where none does, and of tokens outside the vocabulary, it says null. */
    const char *tokenizer;
    bool from_defaults;
} tn_lm_save_options;
TN_API tn_lm_save_options tn_lm_save_defaults(void);
TN_API tn_status tn_lm_save(void *m, const char *folder);
TN_API tn_status tn_lm_save_with(void *m, const char *folder, tn_lm_save_options options);
TN_API tn_status tn_gpt_save_hf(tn_gpt *m, const char *folder);
TN_API tn_status tn_llama_save_hf(tn_llama *m, const char *folder);

/* The tokens that begin and end texts: bos_token_id and eos_token_id of generation_config.json or,
 * where it has none, config.json in a Hugging Face folder. What neither names is the bos_token or
 * eos_token of tokenizer_config.json, and then an end is the tokenizer's <|endoftext|> (the
 * tokenizer may be NULL). Tokens outside the vocabulary of m do not
 * count, and files may be missing. TN_EFORMAT, with the file and the key. */
enum { TN_LM_ENDS = 8 };
typedef struct tn_lm_specials {
    int32_t begin; /* -1: none */
    int32_t ends[TN_LM_ENDS];
    int end_count;
} tn_lm_specials;
TN_API tn_status tn_lm_specials_of(void *m, const tn_tokenizer *tokenizer, const char *folder,
                                   tn_lm_specials *specials);

/* ---- llm.c's checkpoints --------------------------------------------------------------------- */

/* A file of github.com/karpathy/llm.c, version 3 (f32) or 5 (bf16). Loading initialises m, as
 * tn_gpt_load_hf does; options.mmap does nothing. What is wrong with a file is TN_EFORMAT, with the
 * number of its header. Saving writes the version of m's dtype, whole or not at all;
 * TN_EUNSUPPORTED when llm.c has no such model. Rows are added to the vocabulary up to a multiple
 * of 128, and missing biases are zeros. */
TN_API tn_status tn_gpt_load_llmc(tn_gpt *m, const char *path, tn_lm_load_options options);
TN_API tn_status tn_gpt_save_llmc(tn_gpt *m, const char *path);

#ifdef __cplusplus
}
#endif
#endif
