/* Several ranks make one set of tokens in one folder: all read the same texts, and each encodes and
 * writes its share of the shards. How they hear of each other is the caller's: this layer knows no
 * groups. */
#ifndef TERN_DATA_CORPUS_TOKENS_H
#define TERN_DATA_CORPUS_TOKENS_H

#include "tern/tokenizer.h"

/* The functions return false after raising. */
typedef struct tn__token_ranks {
    int rank, ranks;
    bool (*tell)(void *user, void *data, size_t bytes); /* rank 0's bytes become everyone's */
    bool (*meet)(void *user);                           /* waits until all have called it */
    void *user;
} tn__token_ranks;

/* As tn_tokens_make, on all ranks; r NULL: alone. `made` is the same on all. TN_EMISMATCH: a rank
 * has other texts, options or another tokenizer. */
TN_API tn_status tn__tokens_make(const tn_tokenizer *t, const char *const *paths, int count,
                                 const char *out, tn_tokens_options options,
                                 const tn__token_ranks *r, tn_tokens_made *made);

#endif
