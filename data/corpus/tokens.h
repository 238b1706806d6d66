/* Several ranks make one set of tokens in one folder: all read the same texts, and each encodes and
 * writes its share of the shards. How they hear of each other is the caller's: this layer knows no
 * groups. */
#ifndef TERN_DATA_CORPUS_TOKENS_H
#define TERN_DATA_CORPUS_TOKENS_H

#include "core/digest.h"
#include "data/corpus/sources.h"
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

/* Writes a digest of all that the shards depend on: digits[TN__DIGEST_DIGITS + 1]. Texts are the
 * same if their names, sizes and times are. False after raising. */
bool tn__tokens_fingerprint(const tn_tokenizer *t, int32_t eot, const tn_tokens_options *o,
                            const tn__sources *texts, char *digits);

#endif
