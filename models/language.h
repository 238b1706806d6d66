/* What the language models have in common: their families, and how they are called.
 *
 * A family is a kind of module made of a stem, blocks and a top (tn_lm_parts). Its call takes
 * (tokens (B, T), positions, mask) and gives logits (B, T, vocab). Code that works for every family
 * uses its entry here and does not test the kind.
 */
#ifndef TERN_MODELS_LANGUAGE_H
#define TERN_MODELS_LANGUAGE_H

#include "nn/layer.h"
#include "tern/models.h"

#include <stdbool.h>

/* The context of tn_call_values on a language model; NULL is all false. A call that does not begin
 * with part 0 takes the previous part's output, (B, T, C), in place of tokens; one that does not
 * end with the last part returns the output of its own last one. */
typedef struct tn__lm_context {
    tn__range range; /* of tn_lm_parts */
    bool last_only;  /* logits of the last position only: (B, 1, vocab) */
} tn__lm_context;

typedef struct tn__hf_form tn__hf_form;     /* models/weights/hf.h */
typedef struct tn__described tn__described; /* models/weights/described.h */

typedef struct tn__lm_family {
    const char *kind;       /* of the module: "gpt" */
    const char *model_type; /* in Hugging Face's config.json: "gpt2" */
    size_t bytes;           /* of the module's struct */
    tn_lm_shape (*shape)(const tn_module *m);
    tn_module *(*part)(tn_module *m, int i);         /* tn_lm_parts: stem, blocks, top */
    const tn_kv_cache *(*cache)(const tn_module *m); /* the first block's; all have the same */
    bool turns; /* positions are rotary: blocks take them too */
    /* Makes a model from a checkpoint's description (models/weights/described.h). False after
     * raising. */
    bool (*described)(void *m, const tn__described *d, tn_dtype dtype);
    const tn__hf_form *hf; /* its form in Hugging Face's files */
    const tn_tp_rule *tp;  /* how tensor parallelism cuts it */
} tn__lm_family;

extern const tn__lm_family tn__gpt_family, tn__llama_family;
extern const tn__hf_form tn__gpt_hf, tn__llama_hf;

/* The family of m; NULL after raising that m is not a complete language model. */
const tn__lm_family *tn__lm_family_of(void *m, const char *operation);
/* By the module's kind, or config.json's model_type; NULL, without an error, when there is none. */
const tn__lm_family *tn__lm_family_kind(const char *kind);
const tn__lm_family *tn__lm_family_named(const char *model_type);
/* All model types, for a message, to text[size]. */
const char *tn__lm_family_types(char *text, size_t size);

/* Sets eps of m's layer norms, made with PyTorch's default. */
void tn__norms_set_eps(void *m, double eps);

/* The forward of a language model: stem, blocks, top. */
tn_values tn__lm_forward(const tn__lm_family *family, tn_module *m, tn_values in, void *context);

/* Sets recompute on every block of a model, or of what is made of models. */
TN_API void tn__lm_recompute_blocks(void *m);

/* The loss of these logits: that of tn_lm_loss, which a strategy that splits m may compute
 * differently (tn__loss_rule). The logits are consumed. */
TN_API tn_tensor *tn__lm_loss_of(void *m, tn_tensor *logits, tn_tensor *targets);

/* tn_lm_loss of any module that maps tokens (B, T) to logits, with any reduction; TN_NONE: a loss
 * for each target, (B, T). On every rank of those that split m. Its gradient will probably be
 * `ahead` when a backward reaches it: 1 for a root, what it is multiplied by otherwise; 0: nobody
 * knows. Any other costs a pass over the logits, and in bf16 their gradient is rounded once more
 * (tn__cross_entropy_ahead). */
TN_API tn_tensor *tn__lm_losses(void *m, tn_tensor *tokens, tn_tensor *targets, tn_reduction how,
                                double ahead);

/* tn_call, of any module; the ranks of context parallelism get what all of them have computed. */
tn_tensor *tn__lm_call(void *m, tn_tensor *x);

/* start, start + 1, …: `count` positions for x, tokens or their activations. Inert after raising if
 * they exceed the context. */
tn_tensor *tn__lm_positions(const tn_module *m, const tn_tensor *x, int64_t start, int64_t count,
                            int64_t context);

/* The inputs of a stem, (tokens, positions); *positions are 0, 1, … if none are given. False after
 * raising. */
bool tn__lm_stem_inputs(const tn_module *stem, tn_values in, tn_tensor **positions);

/* The input of a top: all of x (B, T, C), or with last_only the last position, (B, 1, C). Inert
 * after raising. */
tn_tensor *tn__lm_top_input(const tn_module *top, tn_values in, const tn__lm_context *context);

/* The special tokens to save with m, from those files in `folder` that can be read. False after
 * raising. */
bool tn__lm_specials_to_save(void *m, const char *folder, tn_lm_specials *specials);

#endif
