/* The documents of a corpus as ids, encoded by several threads and returned in order.
 *
 * The caller's thread reads batches of a few hundred kilobytes of text, while others encode those
 * before them, and receives them in the order of their numbers. So the result does not depend on
 * the number of threads, and only a few batches of each are in memory.
 *
 * Texts that the caller does not want are read, since those after them follow from them, and left
 * out. */
#ifndef TERN_DATA_CORPUS_ENCODERS_H
#define TERN_DATA_CORPUS_ENCODERS_H

#include "core/buffer.h"
#include "tern/tokenizer.h"

/* One text of a batch: a document, or a piece of one. The ids of a pair are the prompt, the
 * completion and the end token. */
typedef struct tn__part {
    int64_t number, piece; /* as in tn_document */
    bool begins;
    bool goes_on; /* the text that came before it in its split */
    int split;    /* where the caller puts it: */
    int64_t shard;
    const char *path;
    int64_t line;
    size_t bytes, prompt_bytes; /* of its text, and in a pair of its prompt */
    bool has_end;               /* its text contains that of the end token, encoded as plain text */
    int64_t prompt, end;        /* its ids end before ids[end]; in a pair: ids of the prompt */
} tn__part;

typedef struct tn__batch {
    tn__part *parts;
    int64_t count, capacity;
    tn__buffer text;
    tn_ids ids;
    int64_t read; /* bytes of the corpus's files that had been read by then */
} tn__batch;

typedef struct tn__encoders tn__encoders;

typedef struct tn__encoding {
    const tn_tokenizer *tokenizer;
    bool pairs;
    int32_t eot; /* ends a pair */
    int threads;
    /* Says where a part goes, and returns whether it is wanted. Called for each in order, by the
     * caller's thread. May raise. */
    bool (*place)(void *user, tn__part *p);
    void *user;
} tn__encoding;

/* Only the encoders use the corpus until they end. NULL after raising. */
tn__encoders *tn__encoders_begin(tn_corpus *c, tn__encoding how);

/* Lent until the next call. NULL at the end, and after raising. */
const tn__batch *tn__encoders_next(tn__encoders *e);

void tn__encoders_end(tn__encoders *e); /* also in the middle; NULL is fine */

#endif
