/* Byte pair encoding of one piece of text. */
#ifndef TERN_DATA_TOKENIZER_BPE_H
#define TERN_DATA_TOKENIZER_BPE_H

#include "tern/tokenizer.h"

/* Two tokens that may be neighbours, and what they become. */
typedef struct tn__pair {
    int32_t left, right; /* left -1: free */
    int32_t rank;        /* the lowest is joined first, the leftmost of equals */
    int32_t id;
} tn__pair;

/* All that may be joined, by left and right. Zeros to begin with. */
typedef struct tn__pairs {
    tn__pair *entries; /* a power of two of them, or NULL */
    uint32_t mask, count;
} tn__pairs;

/* Adds a pair, or replaces the one of the same two tokens. False: no memory. */
bool tn__pairs_put(tn__pairs *p, tn__pair pair);
const tn__pair *tn__pairs_find(const tn__pairs *p, int32_t left, int32_t right); /* or NULL */
void tn__pairs_free(tn__pairs *p);

/* What joining long pieces needs. Zeros to begin with; one thread at a time. */
typedef struct tn__bpe_scratch {
    struct tn__symbol *symbols;
    struct tn__offer *offers;
    int64_t symbol_capacity, offer_capacity;
} tn__bpe_scratch;
void tn__bpe_scratch_free(tn__bpe_scratch *s);

/* Joins ids[0 … count) in place, as long as there is a pair to join. Returns how many are left; -1:
 * no memory. */
int64_t tn__bpe_join(const tn__pairs *p, int32_t *ids, int64_t count, tn__bpe_scratch *s);

/* Reserves memory for `more` ids, appends one. False after raising TN_ENOMEM. */
bool tn__ids_reserve(tn_ids *ids, int64_t more, const char *operation);
bool tn__ids_append(tn_ids *ids, int32_t id, const char *operation);

#endif
