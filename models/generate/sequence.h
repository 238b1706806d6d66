/* One generated sequence: its tokens, its text, its end. Knows nothing of models. */
#ifndef TERN_MODELS_GENERATE_SEQUENCE_H
#define TERN_MODELS_GENERATE_SEQUENCE_H

#include "tern/models.h"

#include <stdbool.h>

typedef struct tn__sequence {
    int index; /* among the prompts */
    tn_prompt prompt;
    tn_generated made;
    bool ended;
    int64_t begin; /* the first token that the model sees, counted in prompt and made.tokens */
    bool *met;     /* [vocab] with a repetition penalty: whether the token occurs so far */
    int64_t text_capacity; /* of made.text */
    size_t sent;           /* bytes passed to on_token */
} tn__sequence;

/* TN_ENOMEM is raised. Finish it in any case. */
tn_status tn__sequence_init(tn__sequence *s, int index, tn_prompt prompt, int64_t vocab,
                            const tn_generate_options *o);
void tn__sequence_finish(tn__sequence *s);

static inline int64_t tn__sequence_length(const tn__sequence *s) {
    return s->prompt.count + s->made.tokens.count;
}

static inline int32_t tn__sequence_token(const tn__sequence *s, int64_t i) {
    return i < s->prompt.count ? s->prompt.ids[i] : s->made.tokens.ids[i - s->prompt.count];
}

/* One more token: the text it adds, whether the sequence has ended, and on_token. */
tn_status tn__sequence_append(tn__sequence *s, int32_t token, const tn_generate_options *o);

#endif
