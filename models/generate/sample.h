/* The next token from a vocabulary's logits: pure functions, for one sequence at a time.
 *
 *     tn__sample_candidates(logits, vocab, how, &c);      which may come next, and how likely
 *     token = tn__sample_draw(&c, u);                     one of them, u in [0, 1)
 *
 * The order of the steps is Hugging Face's: repetition penalty, temperature, top_k, top_p.
 */
#ifndef TERN_MODELS_GENERATE_SAMPLE_H
#define TERN_MODELS_GENERATE_SAMPLE_H

#include "tern/core.h"

#include <stdint.h>

typedef struct tn__sampling {
    double temperature; /* at least 0; below 1e-30: only the most likely token */
    int64_t top_k;      /* keep the k most likely, and those equal to the last; 0: all */
    double top_p; /* then the fewest of them that together are at least this likely, 0 … 1 */
} tn__sampling;

/* The tokens that may come next, in ascending order. */
typedef struct tn__candidates {
    int32_t *tokens;
    float *logits, *weights; /* a weight: exp((logit - the largest) / temperature) */
    int64_t count;           /* at least 1 */
    void *memory;
} tn__candidates;

/* Memory for a vocabulary. TN_ENOMEM after raising. */
TN_API tn_status tn__candidates_init(tn__candidates *c, int64_t vocab);
TN_API void tn__candidates_finish(tn__candidates *c);

/* Makes the logits of tokens that were `met` smaller: positive ones divided by `penalty`, negative
 * ones times it (Keskar et al. 2019, arXiv:1909.05858). */
TN_API void tn__sample_penalize(float *logits, const bool *met, int64_t vocab, double penalty);

/* The most likely token, the first of equal ones. -1 when there is none, or when a logit is NaN or
 * +inf (-inf is a token that never comes): the other functions need logits without these. */
TN_API int64_t tn__sample_best(const float *logits, int64_t vocab);

/* Nothing is sorted: O(vocab) for any logits. */
TN_API void tn__sample_candidates(const float *logits, int64_t vocab, tn__sampling how,
                                  tn__candidates *c);

/* The same, from only n of the logits: the largest, in descending order, among which are top_k
 * (above 0) and all that equal the last of these; temperature above 0. */
TN_API void tn__sample_picked(const float *logits, const int64_t *tokens, int64_t n,
                              tn__sampling how, tn__candidates *c);

/* Draws one, each with probability proportional to its weight. */
TN_API int64_t tn__sample_draw(const tn__candidates *c, double u);

#endif
