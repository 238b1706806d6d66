/* The arithmetic of a collective between ranks that can read each other's memory: one rank's share
 * of the work. For the engines of one host, local and shm, which bring the ranks together before
 * and after. */
#ifndef TERN_DISTRIBUTED_GROUP_ENGINE_VIEW_H
#define TERN_DISTRIBUTED_GROUP_ENGINE_VIEW_H

#include "tern/sys/group.h"

enum { TN__VIEW_RANKS = 256 }; /* at most */

/* Elements [at, at + count) of each part of every rank's input. */
typedef struct tn__peer_view {
    int rank, ranks;
    const char *base[TN__VIEW_RANKS]; /* of each rank's input, from element `at` on */
    int64_t stride;                   /* bytes from one part of an input to the next */
    int64_t at, count;
} tn__peer_view;

/* All of t. The caller sets the bases. */
tn__peer_view tn__view_of(const tn_transfer *t, int rank, int ranks);

/* This rank's output of the view's elements. */
void tn__view_read(const tn__peer_view *v, const tn_transfer *t);

/* For an all-reduce, or a reduction to a root: reduces this rank's slice of the elements and writes
 * it into each of `outs` outputs, which may be inputs too. Each byte is read once and written
 * once. */
void tn__view_reduce(const tn__peer_view *v, const tn_transfer *t, char *const *out, int outs);

/* Slice `rank` of the view's elements: [*begin, *end). Whole cache lines, except the last. */
void tn__view_slice(const tn__peer_view *v, int rank, int64_t *begin, int64_t *end);

/* Part `part` of every rank's input, reduced in the order of the ranks: elements [begin, end) of
 * the view into the same of `to`. */
void tn__view_reduce_part(const tn__peer_view *v, const tn_transfer *t, int64_t part, int64_t begin,
                          int64_t end, char *to);

static inline const char *tn__view_part(const tn__peer_view *v, int rank, int64_t part) {
    return v->base[rank] + part * v->stride;
}

/* 0 bytes at NULL are allowed, and so is a copy onto itself. */
void tn__view_copy(void *to, const void *from, int64_t bytes);

static inline int64_t tn__view_size(const tn_transfer *t) {
    return (int64_t)tn_dtype_size(t->dtype);
}

/* Element `at` of part `part` of this rank's output. */
static inline char *tn__view_out(const tn_transfer *t, int64_t part, int64_t at) {
    return (char *)t->out + (part * t->count + at) * tn__view_size(t);
}

#endif
