/* Reading and reducing through a view. Reductions are in the order of the ranks, by one rank for
 * each element, so the bits depend on nothing else. */
#include "distributed/group/engine/view.h"

#include <string.h>

/* Bytes of a reduction that are written to all ranks while they are in the first-level cache. */
enum { BLOCK = 8192 };

void tn__view_copy(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && from && to != from) { memmove(to, from, (size_t)bytes); }
}

tn__peer_view tn__view_of(const tn_transfer *t, int rank, int ranks) {
    return (tn__peer_view){
        .rank = rank, .ranks = ranks, .stride = t->count * tn__view_size(t), .count = t->count};
}

void tn__view_slice(const tn__peer_view *v, int rank, int64_t *begin, int64_t *end) {
    int64_t n = v->count, each = (n / v->ranks + 64) / 64 * 64;
    *begin = each * rank < n ? each * rank : n;
    *end = n - *begin < each ? n : *begin + each;
}

void tn__view_reduce_part(const tn__peer_view *v, const tn_transfer *t, int64_t part, int64_t begin,
                          int64_t end, char *to) {
    const void *in[TN__VIEW_RANKS];
    int64_t skip = begin * tn__view_size(t);
    for (int r = 0; r < v->ranks; r++) {
        in[r] = tn__view_part(v, r, part) + skip;
    }
    tn__reduce_all(t->reduce, t->dtype, to + skip, in, v->ranks, end - begin);
}

void tn__view_reduce(const tn__peer_view *v, const tn_transfer *t, char *const *out, int outs) {
    int64_t begin, end, size = tn__view_size(t), step = BLOCK / size;
    tn__view_slice(v, v->rank, &begin, &end);
    for (int64_t at = begin; at < end; at += step) {
        int64_t to = end - at < step ? end : at + step;
        tn__view_reduce_part(v, t, 0, at, to, out[0]);
        for (int i = 1; i < outs; i++) {
            tn__view_copy(out[i] + at * size, out[0] + at * size, (to - at) * size);
        }
    }
}

void tn__view_read(const tn__peer_view *v, const tn_transfer *t) {
    int64_t bytes = v->count * tn__view_size(t);
    bool is_root = v->rank == t->root;
    switch (t->kind) {
    case TN_ALL_REDUCE:
        tn__view_reduce_part(v, t, 0, 0, v->count, tn__view_out(t, 0, v->at));
        break;
    case TN_REDUCE_TO_ROOT:
        if (is_root) { tn__view_reduce_part(v, t, 0, 0, v->count, tn__view_out(t, 0, v->at)); }
        break;
    case TN_REDUCE_SCATTER:
        tn__view_reduce_part(v, t, v->rank, 0, v->count, tn__view_out(t, 0, v->at));
        break;
    case TN_ALL_GATHER:
    case TN_GATHER:
        for (int r = 0; r < v->ranks && (t->kind == TN_ALL_GATHER || is_root); r++) {
            tn__view_copy(tn__view_out(t, r, v->at), tn__view_part(v, r, 0), bytes);
        }
        break;
    case TN_ALL_TO_ALL:
        for (int r = 0; r < v->ranks; r++) {
            tn__view_copy(tn__view_out(t, r, v->at), tn__view_part(v, r, v->rank), bytes);
        }
        break;
    case TN_BROADCAST:
        tn__view_copy(tn__view_out(t, 0, v->at), tn__view_part(v, t->root, 0), bytes);
        break;
    case TN_SCATTER:
        tn__view_copy(tn__view_out(t, 0, v->at), tn__view_part(v, t->root, v->rank), bytes);
        break;
    default:
        break;
    }
}
