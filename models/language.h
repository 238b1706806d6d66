/* What the language models have in common: their families, and how they are called.
 *
 * A family is a kind of module whose call takes (tokens (B, T), positions, mask) and gives logits
 * (B, T, vocab). Whatever works for every family asks its entry here instead of the kind.
 */
#ifndef TERN_MODELS_LANGUAGE_H
#define TERN_MODELS_LANGUAGE_H

#include "nn/module.h"
#include "tern/models.h"

#include <stdbool.h>

/* What tn_call_values(m, …, context) of a language model understands; NULL is all false. */
typedef struct tn__lm_context {
    bool last_only; /* logits of the last position only: (B, 1, vocab) */
} tn__lm_context;

typedef struct tn__lm_family {
    const char *kind;       /* of the module: "gpt" */
    const char *model_type; /* in Hugging Face's config.json: "gpt2" */
    size_t bytes;           /* of the module's struct */
    tn_lm_shape (*shape)(const tn_module *m);
} tn__lm_family;

extern const tn__lm_family tn__gpt_family, tn__llama_family;

/* The family of m; NULL after raising that m is no complete language model. */
const tn__lm_family *tn__lm_family_of(void *m, const char *operation);
/* By config.json's model_type; NULL when there is none (nothing is raised). */
const tn__lm_family *tn__lm_family_named(const char *model_type);

/* The inputs of one call. */
typedef struct tn__lm_inputs {
    tn_tensor *tokens;    /* (B, T) */
    tn_tensor *positions; /* (T), (1, T) or (B, T) */
    tn_tensor *mask;      /* or NULL */
    int64_t length;       /* T */
} tn__lm_inputs;

/* Reads the inputs of a call of m; without positions, they are those from `start` on, which must be
 * below `context`. False after raising. */
bool tn__lm_inputs_of(const tn_module *m, tn_values in, int64_t start, int64_t context,
                      tn__lm_inputs *inputs);

#endif
