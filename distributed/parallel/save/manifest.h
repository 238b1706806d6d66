/* What each rank has of a model, and which rank writes it, for a save (saver.c) and an export.
 * Every rank has the lists of all, and deals for itself: the result is the same.
 *
 * An entry is elements of a tensor that one rank has. If several ranks have the same ones, the one
 * with the fewest bytes so far writes them (the lowest, if equal), so that whole parameters are
 * dealt out; of buffers, in which ranks may differ, the lowest rank's are written. Together the
 * written entries make up every whole tensor.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_MANIFEST_H
#define TERN_DISTRIBUTED_PARALLEL_MANIFEST_H

#include "io/checkpoint/parts.h"
#include "tern/distributed.h"

typedef struct tn__manifest_entry {
    const char *name;
    int rank, item; /* in the rank's own order */
    tn_dtype dtype;
    bool dealt; /* the same on every rank that has it */
    bool writes;
    tn_layout layout;
    char digest[TN__DIGEST_DIGITS + 1]; /* of what was written */
} tn__manifest_entry;

typedef struct tn__manifest_list {
    char *text; /* as received; names point into it */
    tn__manifest_entry *at;
    int count;
    int64_t bytes; /* of the rank's file */
} tn__manifest_list;

/* Begins as {.operation, .ranks}. */
typedef struct tn__manifest {
    const char *operation; /* a static string, for messages */
    int ranks;
    tn__manifest_list *lists;    /* [ranks]; NULL: none yet */
    tn__manifest_entry **sorted; /* [count]: all of them, by name, layout and rank */
    int count;
} tn__manifest;

TN_API void tn__manifest_free(tn__manifest *m); /* what it holds */

/* Appends what this rank has, in the order of the items. deal false: the lowest rank that has an
 * entry writes it. */
void tn__manifest_put(tn__buffer *list, const tn__state *s, bool deal);

/* Sets a rank's bytes, replacing its previous ones. False after raising. */
TN_API bool tn__manifest_set(tn__manifest *m, int rank, const void *list, size_t bytes);

/* Sets those of all ranks, of which each gives its own, and decides who writes what. False after
 * raising; TN_EMISMATCH: ranks disagree about a tensor, or entries do not cover it. */
bool tn__manifest_gather(tn__manifest *m, tn_group *g, const tn__buffer *list);
/* Sets what all ranks have written, likewise: each gives its file's size and its items' digests. */
bool tn__manifest_gather_written(tn__manifest *m, tn_group *g, const tn__buffer *written);

/* The first entry of a name in `sorted`, or m->count; and how many from `first` on have its
 * name. */
int tn__manifest_find(const tn__manifest *m, const char *name);
int tn__manifest_named(const tn__manifest *m, int first);

/* Writes the index's "tensors", with brackets. */
void tn__manifest_index(const tn__manifest *m, tn__buffer *j);

#endif
