/* The documents of a corpus as ids, encoded by several threads and returned in order.
 *
 * One thread reads: it fills batches of a few hundred kilobytes of text. The others claim batches
 * by number and encode them. The caller receives them in the order of their numbers, so the result
 * does not depend on the number of threads, and only a few batches are in memory. */
#ifndef TERN_DATA_CORPUS_ENCODERS_H
#define TERN_DATA_CORPUS_ENCODERS_H

#include "tern/tokenizer.h"

/* One text of a batch: a document, or a piece of one. The ids of a pair are the prompt, the
 * completion and the end token. */
typedef struct tn__part {
    int64_t number, piece; /* as in tn_document */
    bool begins;
    bool has_end; /* its text contains that of the end token, encoded as plain text */
    const char *path;
    int64_t line;
    size_t text_prompt, text_end; /* where its text ends, and in a pair its prompt */
    int64_t prompt, end;          /* its ids end before ids[end]; in a pair: ids of the prompt */
} tn__part;

typedef struct tn__batch {
    tn__part *parts;
    int64_t count, capacity;
    char *text;
    size_t bytes;
    int64_t text_capacity;
    tn_ids ids;
    int64_t read; /* bytes of the corpus's files that had been read by then */
} tn__batch;

typedef struct tn__encoders tn__encoders;

/* Only the encoders use the corpus until they end. `eot`: the id that ends a pair. NULL after
 * raising. */
tn__encoders *tn__encoders_begin(tn_corpus *c, const tn_tokenizer *t, bool pairs, int32_t eot,
                                 int threads);

/* Lent until the next call. NULL at the end, and after raising. */
const tn__batch *tn__encoders_next(tn__encoders *e);

void tn__encoders_end(tn__encoders *e); /* also in the middle; NULL is fine */

#endif
