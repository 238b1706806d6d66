/* What each rank has of a model, and who of them writes it.
 *
 * A piece is elements of a tensor that one rank has. Where several have the same one, the lowest of
 * them that has the fewest bytes to write so far writes it, so that whole parameters are dealt out;
 * buffers, in which ranks may differ, are the lowest rank's. Together the pieces that are written
 * are every tensor, whole.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_HOLDINGS_H
#define TERN_DISTRIBUTED_PARALLEL_HOLDINGS_H

#include "distributed/parallel/save/index.h"
#include "io/state.h"

typedef struct tn__holding {
    const char *name;
    tn_dtype dtype;
    bool dealt; /* the same on whoever has it */
    int rank;
    tn_layout layout;
    bool writes;
    char digest[TN__DIGEST_DIGITS + 1]; /* of what was written */
} tn__holding;

/* One rank's. */
typedef struct tn__holdings_list {
    tn__json_file json; /* the names */
    tn__holding *at;    /* [count], in the rank's own order */
    int count;
} tn__holdings_list;

typedef struct tn__holdings {
    int ranks;
    tn__holdings_list *lists; /* [ranks] */
    tn__holding **sorted;     /* [count]: all of them, by name, piece and rank */
    int count;
} tn__holdings;

/* NULL after raising TN_ENOMEM. */
tn__holdings *tn__holdings_new(int ranks, const char *operation);
void tn__holdings_free(tn__holdings *h); /* NULL is fine */

/* What this rank has, as JSON: {NAME:{…}, …}, in the order of the items. deal false: of whoever has
 * the same piece the lowest rank writes it. */
void tn__holdings_put(tn__json_text *j, const tn__state *s, bool deal);

/* The list of a rank, in the place of the one before; `json`, in which `tensors` lies, is taken in
 * any case. False after raising. */
bool tn__holdings_set(tn__holdings *h, int rank, tn__json_file *json, const tn__json *tensors,
                      const char *operation);

/* Decides who writes what. False after raising TN_EMISMATCH: ranks that disagree about a tensor, or
 * pieces that are not the whole of it. */
bool tn__holdings_deal(tn__holdings *h, const char *operation);

/* How many from the first-th of `sorted` on have the same name. */
int tn__holdings_named(const tn__holdings *h, int first);

/* What is written, as "tensors" of an index, with brackets. */
void tn__holdings_index(const tn__holdings *h, tn__json_text *j);

#endif
