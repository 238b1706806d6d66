/* tokens.json: the file next to the shards that `tern tokens` made, which tells a reader what they
 * are. While they are being made, it says so. */
#ifndef TERN_DATA_CORPUS_TOKENS_JSON_H
#define TERN_DATA_CORPUS_TOKENS_JSON_H

#include "core/file.h"
#include "tern/tokenizer.h"

#define TN__TOKENS_JSON "tokens.json"

/* "train_000000" and "val_000000" and this ending, ".bin": the names that belong to it. */
TN_API bool tn__is_token_shard(const char *name, const char *ending);

typedef enum tn__tokens_state {
    TN__TOKENS_NONE, /* there is no tokens.json */
    TN__TOKENS_UNFINISHED,
    TN__TOKENS_WHOLE,
    TN__TOKENS_ERROR, /* raised */
} tn__tokens_state;

/* What the tokens.json of a finished set says. */
typedef struct tn__tokens_told {
    int64_t vocab;
    char tokenizer[TN__DIGEST_DIGITS + 1]; /* tn__tokenizer_digest; "": not given */
} tn__tokens_told;

/* What the folder's tokens.json says. */
tn__tokens_state tn__tokens_look(const char *folder, tn__tokens_told *told, const char *operation);

/* What the tokens.json to which this shard belongs says. */
tn__tokens_state tn__tokens_beside(const char *shard, tn__tokens_told *told, const char *operation);

/* Whether this shard may be read with a vocabulary of this size, as far as the tokens.json next to
 * it tells. False after raising. */
bool tn__tokens_allow(const char *shard, int64_t vocab, const char *operation);

/* Puts what tells a reader of a finished set. False after raising. */
bool tn__tokens_put(tn__file *f, const tn__tokens_told *told, int32_t eot, bool pairs,
                    const tn_tokens_made *made, const char *const *paths, int count);

/* Writes the digest of the bytes of all tokens to digits[TN__DIGEST_DIGITS + 1]. False after
 * raising. */
bool tn__tokenizer_digest(const tn_tokenizer *t, char *digits, const char *operation);

#endif
