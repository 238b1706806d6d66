/* Several ranks make one set of tokens: all read the texts, each encodes its share of the batches,
 * and rank 0 receives the others' ids and writes. Its files are those of one process, and only it
 * needs the folder. How bytes travel is the caller's: this layer knows no groups. */
#ifndef TERN_DATA_CORPUS_EXCHANGE_H
#define TERN_DATA_CORPUS_EXCHANGE_H

#include "core/buffer.h"
#include "data/corpus/encoders.h"

/* The functions return false after raising. */
typedef struct tn__token_ranks {
    int rank, ranks;
    bool (*tell)(void *user, void *data, size_t bytes);       /* rank 0's bytes become everyone's */
    bool (*send)(void *user, const void *data, size_t bytes); /* to rank 0 */
    /* On rank 0, what `from` sends next, into a buffer, which is emptied first. */
    bool (*receive)(void *user, int from, tn__buffer *to);
    void *user;
} tn__token_ranks;

/* As tn_tokens_make, on all ranks; r NULL: alone. `made` is the same on all. TN_EMISMATCH: a rank
 * has other texts, options or another tokenizer. */
TN_API tn_status tn__tokens_make(const tn_tokenizer *t, const char *const *paths, int count,
                                 const char *out, tn_tokens_options options,
                                 const tn__token_ranks *r, tn_tokens_made *made);

/* The ids of a batch: from the rank that encoded them, and on rank 0 into its own batch, which has
 * none yet. False after raising, TN_EMISMATCH if the texts differ. */
bool tn__batch_send(const tn__token_ranks *r, const tn__batch *b);
bool tn__batch_receive(const tn__token_ranks *r, tn__batch *b);

#endif
