/* What tn_call_values(gpt, …, context) understands. */
#ifndef TERN_MODELS_GPT_H
#define TERN_MODELS_GPT_H

#include "tern/models.h"

#include <stdbool.h>

typedef struct tn__gpt_context {
    bool last_only; /* logits of the last position only: (B, 1, vocab) */
} tn__gpt_context;

#endif
