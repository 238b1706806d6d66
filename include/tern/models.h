/* Whole models: language models built from nn's parts, with Hugging Face's parameter names.
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

/* A language model maps tokens (B, T), i64 or i32, to logits (B, T, vocab): tn_call(&model,
 * tokens). With tn_call_values it takes (tokens, positions, mask), of which the last two may be
 * NULL or missing:
 *
 *     positions: (B, T) or (T), i64 or i32, below `context`. NULL: 0, 1, …, or those after what
 *         the caches hold (tn_cache_begin)
 *     mask: bool, broadcasts to (B, heads, T, S), true where a position may be seen, in addition to
 *         what comes later being unseen. S is T, and with caches what they hold and T
 *
 * Without positions, T (after what the caches hold) is at most `context`.
 *
 * It is a sequence of a stem, blocks and a top, so that a pipeline can split it:
 *
 *     stem(tokens, positions) -> x (B, T, C)      positions as above; without them 0, 1, …
 *     block(x, mask, positions) -> x              as many as layers
 *     top(x) -> logits
 *
 * Stem and top are transparent children: not part of parameter names. */

typedef struct tn_lm_shape {
    int64_t vocab, context;
    int layers, heads, kv_heads; /* kv_heads: heads of keys and values, which query heads share */
    int64_t width, parameters;   /* parameters: number of elements, tied ones once */
} tn_lm_shape;
/* TN_EVALUE, and zeros, if m is not a language model of this header. */
TN_API tn_status tn_lm_shape_of(void *m, tn_lm_shape *shape);

/* Writes the parts of m, at most `most` of them, in the order of a call. Returns how many there
 * are, layers + 2; 0 after an error (m is not a language model). Calling them one by one gives the
 * same bits as calling m. */
TN_API int tn_lm_parts(void *m, tn_module **parts, int most);

/* The mean loss of predicting `targets` (B, T; -100 is ignored). m: any module whose tn_call
 * returns logits (B, T, vocab). On a device the forward replaces the logits, if no one has kept
 * them, by their gradient: one backward only then, also with retain_graph, and its gradient cannot
 * be differentiated again (TN_EUNSUPPORTED). There a loss that the program multiplies (loss / n)
 * costs another pass over the logits. */
TN_API tn_tensor *tn_lm_loss(void *m, tn_tensor *tokens, tn_tensor *targets);

/* What each place of tokens (B, T) i64 predicts, for tn_lm_loss: the token after it, and -100 at
 * the end of a row, which has lengths[b] tokens; lengths: (B) i64, or NULL: all have T. Below 0
 * counts as 0, above T as T. On tokens' device. TN_ESHAPE, also for another dtype. */
TN_API tn_tensor *tn_lm_targets(tn_tensor *tokens, tn_tensor *lengths);

/* ---- How matrices may be cut over ranks -------------------------------------------------------
 */

/* What a rank has of a module under tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053), and
 * what its forward does about it. A plan is a list of rules, which tn_tensor_parallel (split.h)
 * applies by name; it ends with NULL. */
typedef enum tn_tp_style {
    TN_TP_ENTER,  /* any module: a cut region begins, its first input is one value on all ranks; one
                     for each COLUMN and LOGITS, there or for a module around it */
    TN_TP_COLUMN, /* linear: this rank's rows of weight and bias, so columns of the result */
    TN_TP_ROW,   /* linear: this rank's columns; the region ends: the sum of all ranks, then bias */
    TN_TP_VOCAB, /* embedding: this rank's rows, others' give 0; the sum of all ranks */
    TN_TP_LOGITS,  /* linear: COLUMN; a direct call gives all columns, tn_lm_loss uses these */
    TN_TP_SEQUENCE /* between regions: norm, dropout, embedding of positions (`sequence`) */
} tn_tp_style;
typedef struct tn_tp_rule {
    const char *paths; /* of modules, with spaces between them; * is anything but a dot */
    tn_tp_style style;
    int pieces; /* COLUMN: how many matrices are side by side, 3 for q, k and v in one */
} tn_tp_rule;

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
    bool bias;                /* true, as in GPT-2; false in the character recipe */
    double dropout;           /* 0 */
    tn_activation activation; /* TN_ACT_GELU_TANH */
    tn_dtype dtype;
    bool from_defaults;
} tn_gpt_options;
/* What comes before the blocks: ids to (B, T, C). */
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

/* Weights normal(0, 0.02), the projections back into the residual stream (c_proj) by 0.02 / sqrt(2
 * layers), biases 0; the classifier is wte.weight. Linears are (out, in) as everywhere here;
 * Hugging Face's GPT-2 has them as (in, out), which tn_lm_load converts. */
TN_API void tn_gpt_init(tn_gpt *m, tn_gpt_options options);
/* The same in memory of its own: for TN_OWN, or to be freed with tn_module_free. */
TN_API tn_gpt *tn_gpt_new(tn_gpt_options options);
extern TN_API const tn_tp_rule tn_gpt_tp[];

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
    /* With a tokenizer: the bytes now known to be part of the text, which may end inside a
     * character (tn_utf8_put). Bytes that could begin a stop text are held back. */
    const char *text;
    size_t bytes;
} tn_generated_token;

/* Called for each token as soon as it is generated, in the calling thread. False ends this
 * sequence; an error that it raises ends all. */
typedef bool (*tn_on_token)(const tn_generated_token *token, void *user);

typedef struct tn_generate_options {
    int64_t max_new;            /* 100: tokens per sequence, unless it stops earlier */
    int64_t min_new;            /* 0: nothing stops a sequence before this many tokens */
    double temperature;         /* 1: divides the logits. 0: always the most likely token */
    int64_t top_k;              /* 0: all; else only the k most likely */
    double top_p;               /* 1: only the fewest tokens that reach this probability together */
    double repetition_penalty;  /* 1: above 1, tokens that already occur are less likely */
    uint64_t seed;              /* 0 */
    uint64_t first;             /* 0: the number of sequence 0, if other calls use the same seed */
    const int32_t *stop_tokens; /* [stop_token_count]: each is its sequence's last */
    int stop_token_count;       /* 0 */
    const char *const *stop_texts; /* [stop_text_count], with a tokenizer: the text ends before */
    int stop_text_count;           /* 0 */
    const tn_tokenizer *tokenizer; /* NULL: only tokens, no text */
    tn_on_token on_token;          /* NULL */
    void *user;
    bool from_defaults;
} tn_generate_options;
TN_API tn_generate_options tn_generate_defaults(void);

typedef enum tn_generated_end {
    TN_ENDED_BY_COUNT, /* max_new */
    TN_ENDED_BY_TOKEN, /* a stop token, the last of ids; not part of the text */
    TN_ENDED_BY_TEXT,  /* a stop text, before which the text ends; ids may go beyond */
    TN_ENDED_BY_CALLER /* on_token */
} tn_generated_end;

typedef struct tn_generated {
    tn_ids tokens;
    char *text; /* with a tokenizer: their bytes, and a 0; else NULL */
    size_t bytes;
    tn_generated_end end;
} tn_generated;

/* Continues each of n prompts, whose lengths may differ, in one batch, into out[n], which
 * tn_generated_free clears. m: a language model of this header (tn_lm_shape_of).
 *
 * The steps from logits to a token are Hugging Face's, in this order: repetition penalty (Keskar et
 * al. 2019, arXiv:1909.05858), temperature, top_k, top_p (Holtzman et al. 2019, arXiv:1904.09751).
 * Of equal logits temperature 0 picks the lowest token, and top_p takes it first; top_k keeps all
 * that equal the k-th. If the tokenizer has fewer tokens than the model has logits, only its tokens
 * are generated.
 *
 * Each draw depends only on (seed, number of the sequence, position): the same text for any number
 * of threads and any other sequences in the batch, up to rounding of the logits.
 *
 * Of a prompt that is longer than the context only the last `context` tokens are used. A sequence
 * that fills the context continues from its newer half, which is read again: learned positions
 * cannot slide, and rotary ones are treated the same.
 *
 * Memory: keys and values for all positions, at most the context; only `out` grows with the tokens.
 * Dropout stays as it is: call tn_module_train(m, false) first. Uses the caches of tn_cache_begin,
 * which are gone afterwards.
 *
 * A model on several ranks (tn_spread_new): every rank calls, with the same prompts, options and
 * callback results, and gets the same text.
 *
 * TN_EVALUE (not a language model, an empty prompt, an option out of range, a logit that is NaN or
 * infinite, which the message names), TN_EINDEX (a token outside the vocabulary), TN_ENOMEM and
 * what the model raises; then out is zeros. */
TN_API tn_status tn_generate(void *m, const tn_prompt *prompts, int n, tn_generate_options options,
                             tn_generated *out);
TN_API void tn_generated_free(tn_generated *out, int n); /* the contents; leaves zeros */

/* ---- Llama ----------------------------------------------------------------------------------- */

/* Llama (Touvron et al. 2023, arXiv:2302.13971), version 3 (Grattafiori et al. 2024,
 * arXiv:2407.21783).
 *
 * x + self_attn(input_layernorm(x)), then x + mlp(post_attention_layernorm(x)): Llama's layer and
 * its names. The norms are RMS norms. A second input is the mask of self_attn, a third its
 * positions. */
typedef struct tn_llama_block_options {
    int heads;          /* 1 */
    int kv_heads;       /* 0: heads */
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
    int layers, heads, kv_heads; /* kv_heads 0: heads */
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
/* The same in memory of its own: for TN_OWN, or to be freed with tn_module_free. */
TN_API tn_llama *tn_llama_new(tn_llama_options options);
extern TN_API const tn_tp_rule tn_llama_tp[];

/* ---- Weights in Hugging Face's folders ------------------------------------------------------- */

/* A folder has config.json, and model.safetensors or model.safetensors.index.json with its parts,
 * as transformers' from_pretrained reads and save_pretrained writes them. Families: gpt ("gpt2"),
 * llama ("llama").
 *
 * Loading reads everything in config.json that affects what a model computes. What the model here
 * cannot do is TN_EFORMAT, which names the key and its value. Names in the files may have the
 * family's prefix ("transformer.") or not. A tied head may be in the files if it equals the
 * embedding, and so may the masks of older files. Missing or extra names are TN_EMISMATCH, with the
 * first of each; shapes TN_ESHAPE. Weights in f32, bf16, f16 and f64 are converted to the model's
 * dtype; a finite one that would become infinite is TN_EVALUE, by name. Dropout is 0: the config's
 * value is how the model was trained.
 *
 * No tensor is in memory twice, except those that have to be converted or transposed (GPT-2's
 * linears), one at a time.
 *
 * Under TN_DEFER_INIT parameters get no elements yet, to be laid out on ranks before
 * tn_lm_load_weights; but 8-bit ones are loaded. */
typedef struct tn_lm_load_options {
    bool as_stored; /* true: parameters in the dtype that the token embedding has in the files */
    tn_dtype dtype; /* otherwise in this dtype: TN_F32 */
    /* false: the files are read, and may change later. true: weights stored as the model needs
     * them, in its dtype and as (out, in), become views of the mapped files (tn_safetensors_map):
     * nothing is read before it is used, and processes share the memory. Writing to such a file
     * while the model lives changes its weights, and truncating it kills the process (SIGBUS).
     * Training such a model is allowed, and costs memory for the pages that change. Other weights
     * are read as usual: GPT-2's linears, which files have as (in, out). */
    bool mmap;
    bool from_defaults;
} tn_lm_load_options;
TN_API tn_lm_load_options tn_lm_load_defaults(void);

/* A tn_gpt or tn_llama with the folder's options and weights, as their _new make it: for TN_OWN, or
 * to be freed with tn_module_free. Its `kind`, "gpt" or "llama", says which: look before a cast.
 * NULL after an error. */
TN_API tn_module *tn_lm_load(const char *folder, tn_lm_load_options options);

/* A model with the folder's config, in f32, with weights drawn as by tn_gpt_init and tn_llama_init,
 * or none yet (TN_DEFER_INIT): to be laid out on ranks before tn_lm_load_weights. dropout: for a
 * family that has it (gpt); for another, anything but 0 is TN_EUNSUPPORTED. NULL after an error.
 */
TN_API tn_module *tn_lm_new(const char *folder, double dropout);

/* Loads weights into an existing model, which must match the folder's: TN_EMISMATCH names options
 * that differ, other than dropout. For a sharded model each rank reads only its own elements or, of
 * a matrix that files have as (in, out), the block that they are in. After an error nothing has
 * changed, except that deferred parameters (TN_DEFER_INIT) may have elements. */
TN_API tn_status tn_lm_load_weights(void *m, const char *folder);

/* Writes a folder that transformers and tn_lm_load can read, with the same logits; it is made if
 * missing. A model in it is replaced, other files (a tokenizer's) stay. Whatever makes a save fail,
 * and whenever its process is killed, the old model or the new one is there, whole. While files are
 * being renamed the model is in FOLDER/weights.tmp, a folder of the same kind: if a save is
 * interrupted then, it stays, tn_lm_load reads it, and the next save tidies up.
 *
 * TN_EUNSUPPORTED: a parameter is sharded, or transformers has no such model. A gpt without biases
 * gets some, which are zeros. */
typedef struct tn_lm_save_options {
    int64_t max_part_bytes; /* 5e9: a larger model is split into files of at most this many bytes */
    /* false; true: as tn_save, to tern.safetensors beside config.json: every weight as in the
     * model, so that all can be mapped (tn_lm_load_options.mmap). tn_lm_load reads such a folder;
     * transformers reports that it has no weights. The only format for 8-bit weights (tn_quantize),
     * which come back as bytes. */
    bool plain;
    /* Another folder whose tokenizer files are copied; NULL: the folder itself. It also determines
     * which tokens begin and end texts, for config.json: by generation_config.json, the tokenizer,
     * or an older config.json. If none tells, or for tokens outside the vocabulary, config.json has
     * null. */
    const char *tokenizer;
    bool from_defaults;
} tn_lm_save_options;
TN_API tn_lm_save_options tn_lm_save_defaults(void);
TN_API tn_status tn_lm_save(void *m, const char *folder);
TN_API tn_status tn_lm_save_with(void *m, const char *folder, tn_lm_save_options options);

/* The tokens that begin and end texts: bos_token_id and eos_token_id of generation_config.json or
 * else config.json in a Hugging Face folder; if neither has them, the bos_token and eos_token of
 * tokenizer_config.json; and if there is still no end, the tokenizer's <|endoftext|> (the tokenizer
 * may be NULL). Tokens outside the vocabulary of m do not count, nor does one that is repeated, and
 * files may be missing. TN_EFORMAT, with the file and the key; TN_EUNSUPPORTED: more than
 * TN_LM_ENDS ends. */
enum { TN_LM_ENDS = 64 };
typedef struct tn_lm_specials {
    int32_t begin; /* -1: none */
    int32_t ends[TN_LM_ENDS];
    int end_count;
} tn_lm_specials;
TN_API tn_status tn_lm_specials_of(void *m, const tn_tokenizer *tokenizer, const char *folder,
                                   tn_lm_specials *specials);

#ifdef __cplusplus
}
#endif
#endif
