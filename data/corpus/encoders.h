/* The documents of a corpus as ids, encoded by several threads and returned in order.
 *
 * One thread reads: it fills batches of a few hundred kilobytes of text. The others claim batches
 * by number and encode them. The caller receives them in the order of their numbers, so the result
 * does not depend on the number of threads, and only a few batches are in memory.
 *
 * Several ranks read the same texts, and each encodes its share of the batches. Rank 0 returns the
 * others' too, without ids, for which it asks them (exchange.h). */
#ifndef TERN_DATA_CORPUS_ENCODERS_H
#define TERN_DATA_CORPUS_ENCODERS_H

#include "tern/tokenizer.h"

/* Reading a batch ends when it has so much. These decide what its number means. */
enum { TN__BATCH_BYTES = 1 << 18, TN__BATCH_PARTS = 4096 };

/* One text of a batch: a document, or a piece of one. The ids of a pair are the prompt, the
 * completion and the end token. */
typedef struct tn__part {
    int64_t number, piece; /* as in tn_document */
    bool begins;
    bool unwanted; /* not encoded: it has no ids */
    bool has_end;  /* its text contains that of the end token, encoded as plain text */
    const char *path;
    int64_t line;
    size_t text_prompt, text_end; /* where its text ends, and in a pair its prompt */
    int64_t prompt, end;          /* its ids end before ids[end]; in a pair: ids of the prompt */
} tn__part;

typedef struct tn__batch {
    int64_t number; /* from 0 */
    bool foreign;   /* another rank encodes it */
    tn__part *parts;
    int64_t count, capacity;
    char *text;
    size_t bytes;
    int64_t text_capacity;
    tn_ids ids;
    int64_t read; /* bytes of the corpus's files that had been read by then */
} tn__batch;

typedef struct tn__encoders tn__encoders;

typedef struct tn__encoding {
    const tn_tokenizer *tokenizer;
    bool pairs;
    int32_t eot; /* ends a pair */
    int threads;
    int rank, ranks;
    /* Whether a part of this batch is to be encoded; called by the thread that reads. */
    bool (*wants)(void *user, const tn__part *p, int64_t batch);
    void *user;
} tn__encoding;

/* Only the encoders use the corpus until they end. NULL after raising. */
tn__encoders *tn__encoders_begin(tn_corpus *c, tn__encoding how);

/* Lent until the next call. NULL at the end, and after raising. */
tn__batch *tn__encoders_next(tn__encoders *e);

void tn__encoders_end(tn__encoders *e); /* also in the middle; NULL is fine */

#endif
