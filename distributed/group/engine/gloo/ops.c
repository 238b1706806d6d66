/* The operations of the engine "gloo", made of messages between two ranks.
 *
 *     reductions   Each rank reduces one slice: it gets that slice from all others, reduces in the
 *                  order of the ranks, and sends the result to the ranks that want it. As many
 *                  bytes are sent as in a ring, in two steps instead of 2(N-1), and a bf16 is
 *                  rounded once. Long arrays go in blocks: while one is reduced, the next is in
 *                  flight.
 *     broadcast    A binomial tree, in pieces, so that all its levels work at the same time.
 *     the others   Straight from the rank that has it to the one that wants it.
 */
#include "distributed/group/engine/gloo/gloo.h"

#include <string.h>

/* Bytes of one message where an array is cut, and of the memory that a reduction takes besides its
 * arrays. */
enum { PIECE = 1 << 20, BESIDE = 64 << 20 };

/* The first tag of an operation; the steps within it count on from there. Different operations,
 * sizes or dtypes have different tags (bits mixed as in splitmix64),
 * so their messages never meet. */
static uint64_t tag_of(const tn_transfer *t, uint64_t number) {
    const uint64_t parts[] = {number,
                              (uint64_t)t->kind,
                              (uint64_t)t->dtype,
                              (uint64_t)t->root,
                              (uint64_t)t->reduce,
                              (uint64_t)t->count};
    uint64_t x = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        x += parts[i] + 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

static void copy_bytes(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && to != from) { memmove(to, from, (size_t)bytes); }
}

/* The peer at distance i = 1 … N-1: each rank begins with a different one. */
static int peer_after(const tn__gloo *e, int i) {
    return (e->base.rank + i) % e->base.ranks;
}
static int peer_before(const tn__gloo *e, int i) {
    return (e->base.rank - i + e->base.ranks) % e->base.ranks;
}

/* ---- Reductions ------------------------------------------------------------------------------ */

/* How an array is cut: block k holds one slice of up to `piece` elements for each rank. */
typedef struct cut {
    int64_t piece, blocks;
    int64_t by_block, by_rank; /* slice (k, r) begins at k by_block + r by_rank */
    int64_t count;
    /* all ranks share one array of `count`; else each has its own, one after the other */
    bool whole;
} cut;

static cut cut_of(const tn_transfer *t, int ranks) {
    bool whole = t->kind != TN_REDUCE_SCATTER;
    int64_t each = whole ? (t->count + ranks - 1) / ranks : t->count;
    int64_t budget = BESIDE / 2 / ranks, size = (int64_t)tn_dtype_size(t->dtype);
    int64_t most = (budget < PIECE ? budget : PIECE) / size;
    int64_t blocks = (each + most - 1) / most;
    int64_t piece = blocks ? (each + blocks - 1) / blocks : 0;
    return (cut){.piece = piece,
                 .blocks = blocks,
                 .by_block = whole ? piece * ranks : piece,
                 .by_rank = whole ? piece : t->count,
                 .count = t->count,
                 .whole = whole};
}

/* In bytes. */
typedef struct span {
    int64_t begin, bytes;
} span;

static span slice_of(const cut *c, int64_t block, int rank, int64_t size) {
    int64_t begin = block * c->by_block + rank * c->by_rank;
    int64_t end = c->whole ? c->count : (rank + 1) * c->count;
    int64_t n = end - begin < c->piece ? end - begin : c->piece;
    return (span){begin * size, (n > 0 ? n : 0) * size};
}

typedef struct reduction {
    const tn_transfer *t;
    cut cut;
    int64_t size;  /* of an element */
    char *scratch; /* two sets of a slice for each rank: (2, N, piece) */
    uint64_t tag;
} reduction;

/* Rank r's slice of the block that is being reduced; this rank's own holds the result when there is
 * no other place for it. */
static char *scratch_of(const tn__gloo *e, const reduction *d, int64_t block, int r) {
    return d->scratch + ((block & 1) * e->base.ranks + r) * d->cut.piece * d->size;
}

/* Sends each rank its slice of the block, and receives this rank's slice from all. */
static bool exchange_slices(tn__gloo *e, const reduction *d, int64_t block) {
    tn__gloo_batch *b = &e->batches[block & 1];
    int64_t own = slice_of(&d->cut, block, e->base.rank, d->size).bytes;
    for (int i = 1; i < e->base.ranks; i++) {
        int from = peer_before(e, i), to = peer_after(e, i);
        span s = slice_of(&d->cut, block, to, d->size);
        uint64_t tag = d->tag + 2 * (uint64_t)block;
        if (!tn__gloo_receive(e, b, from, tag, scratch_of(e, d, block, from), own) ||
            !tn__gloo_send(e, b, to, tag, (const char *)d->t->in + s.begin, s.bytes)) {
            return false;
        }
    }
    return true;
}

/* Reduces this rank's slice of a block that has arrived; returns where the result is. */
static char *reduce_slice(const tn__gloo *e, const reduction *d, int64_t block, const void **x) {
    const tn_transfer *t = d->t;
    int rank = e->base.rank;
    span s = slice_of(&d->cut, block, rank, d->size);
    for (int r = 0; r < e->base.ranks; r++) {
        x[r] = r == rank ? (const char *)t->in + s.begin : scratch_of(e, d, block, r);
    }
    char *y = scratch_of(e, d, block, rank);
    if (t->kind == TN_REDUCE_SCATTER) {
        y = (char *)t->out + block * d->cut.by_block * d->size;
    } else if (t->kind == TN_ALL_REDUCE || t->root == rank) {
        y = (char *)t->out + s.begin;
    }
    if (s.bytes > 0) {
        tn__reduce_all(t->reduce, t->dtype, y, x, e->base.ranks, s.bytes / d->size);
    }
    return y;
}

/* Sends the reduced slice to the ranks that want it, and receives theirs. */
static bool share_slice(tn__gloo *e, const reduction *d, int64_t block, const char *result) {
    const tn_transfer *t = d->t;
    tn__gloo_batch *b = &e->batches[2 + (block & 1)];
    bool all = t->kind == TN_ALL_REDUCE;
    span own = slice_of(&d->cut, block, e->base.rank, d->size);
    for (int i = 1; i < e->base.ranks && t->kind != TN_REDUCE_SCATTER; i++) {
        int from = peer_before(e, i), to = peer_after(e, i);
        span s = slice_of(&d->cut, block, from, d->size);
        uint64_t tag = d->tag + 2 * (uint64_t)block + 1;
        bool wanted = all || t->root == e->base.rank;
        if ((wanted && !tn__gloo_receive(e, b, from, tag, (char *)t->out + s.begin, s.bytes)) ||
            ((all || t->root == to) && !tn__gloo_send(e, b, to, tag, result, own.bytes))) {
            return false;
        }
    }
    return true;
}

/* all_reduce, reduce_scatter and reduce_to_root. in and out may be the same memory: what a block's
 * results overwrite has been sent before. */
static bool gloo_reduce(tn__gloo *e, const tn_transfer *t, uint64_t tag) {
    int ranks = e->base.ranks;
    reduction d = {
        .t = t, .cut = cut_of(t, ranks), .size = (int64_t)tn_dtype_size(t->dtype), .tag = tag};
    int64_t sets = (d.cut.blocks > 1 ? 2 : 1) * ranks * d.cut.piece * d.size,
            pointers = ranks * (int64_t)sizeof(void *);
    if (d.cut.blocks == 0) { return true; }
    const void **x = tn__gloo_scratch(e, pointers + sets);
    if (!x) { return false; }
    d.scratch = (char *)x + pointers;
    bool fine = exchange_slices(e, &d, 0);
    for (int64_t k = 0; k < d.cut.blocks && fine; k++) {
        fine = (k + 1 == d.cut.blocks || exchange_slices(e, &d, k + 1)) &&
               tn__gloo_finish(e, &e->batches[k & 1]) &&
               tn__gloo_finish(e, &e->batches[2 + (k & 1)]) &&
               share_slice(e, &d, k, reduce_slice(e, &d, k, x));
    }
    return fine && tn__gloo_finish(e, &e->batches[2]) && tn__gloo_finish(e, &e->batches[3]);
}

/* ---- Broadcast ------------------------------------------------------------------------------- */

static int64_t piece_bytes(int64_t bytes, int64_t piece) {
    int64_t left = bytes - piece * PIECE;
    return left < PIECE ? left : PIECE;
}

/* The size of the subtree below v: v's lowest set bit, or for the root all. */
static int subtree_size(int v, int ranks) {
    int size = 1;
    while (v ? !(v & size) : size < ranks) {
        size *= 2;
    }
    return size;
}

static bool receive_piece(tn__gloo *e, int parent, uint64_t tag, char *data, int64_t bytes,
                          int64_t piece) {
    return piece * PIECE >= bytes ||
           tn__gloo_receive(e, &e->batches[piece & 1], parent, tag + (uint64_t)piece,
                            data + piece * PIECE, piece_bytes(bytes, piece));
}

/* Ranks count from the root: v receives from v - subtree_size(v), and sends to v + each smaller
 * power of two, the largest subtree first. The next piece is in flight while one is passed on. */
static bool gloo_broadcast(tn__gloo *e, const tn_transfer *t, uint64_t tag) {
    int ranks = e->base.ranks, root = t->root, v = (e->base.rank - root + ranks) % ranks;
    int size = subtree_size(v, ranks), parent = (v - size + root + ranks) % ranks;
    int64_t bytes = t->count * (int64_t)tn_dtype_size(t->dtype);
    char *data = v ? t->out : (char *)(uintptr_t)t->in;
    bool fine = v == 0 || receive_piece(e, parent, tag, data, bytes, 0);
    for (int64_t k = 0; k * PIECE < bytes && fine; k++) {
        tn__gloo_batch *out = &e->batches[2 + (k & 1)];
        fine = (v == 0 || receive_piece(e, parent, tag, data, bytes, k + 1)) &&
               tn__gloo_finish(e, &e->batches[k & 1]) && tn__gloo_finish(e, out);
        for (int child = size / 2; child > 0 && fine; child /= 2) {
            fine = v + child >= ranks ||
                   tn__gloo_send(e, out, (v + child + root) % ranks, tag + (uint64_t)k,
                                 data + k * PIECE, piece_bytes(bytes, k));
        }
    }
    if (v == 0 && t->out) { copy_bytes(t->out, t->in, bytes); }
    return fine && tn__gloo_finish(e, &e->batches[2]) && tn__gloo_finish(e, &e->batches[3]);
}

/* ---- Without arithmetic ---------------------------------------------------------------------- */

/* all_gather, all_to_all, gather and scatter: sends `in`, or each rank's block of it, to those that
 * want it, and receives theirs. */
static bool move_blocks(tn__gloo *e, const tn_transfer *t, const char *in, int64_t bytes,
                        uint64_t tag) {
    tn__gloo_batch *b = &e->batches[0];
    int rank = e->base.rank, root = t->root;
    bool gather = t->kind == TN_GATHER, scatter = t->kind == TN_SCATTER;
    int64_t in_step = scatter || t->kind == TN_ALL_TO_ALL ? bytes : 0,
            out_step = scatter ? 0 : bytes;
    for (int i = 1; i < e->base.ranks; i++) {
        int from = peer_before(e, i), to = peer_after(e, i);
        bool receives = gather ? rank == root : !scatter || from == root;
        bool sends = gather ? to == root : !scatter || rank == root;
        if ((receives &&
             !tn__gloo_receive(e, b, from, tag, (char *)t->out + from * out_step, bytes)) ||
            (sends && !tn__gloo_send(e, b, to, tag, in + to * in_step, bytes))) {
            return false;
        }
    }
    if (rank == root || (!gather && !scatter)) {
        copy_bytes((char *)t->out + rank * out_step, in + rank * in_step, bytes);
    }
    return tn__gloo_finish(e, b);
}

/* In place, a block might overwrite one that has not been sent: a copy is sent. */
static bool all_to_all(tn__gloo *e, const tn_transfer *t, int64_t bytes, uint64_t tag) {
    const char *in = t->in;
    if (t->in == t->out && bytes > 0) {
        char *scratch = tn__gloo_scratch(e, e->base.ranks * bytes);
        if (!scratch) { return false; }
        copy_bytes(scratch, t->in, e->base.ranks * bytes);
        in = scratch;
    }
    return move_blocks(e, t, in, bytes, tag);
}

/* Every rank touches every other, so a time-out names the missing rank. */
static bool gloo_barrier(tn__gloo *e, uint64_t tag) {
    tn__gloo_batch *b = &e->batches[0];
    for (int i = 1; i < e->base.ranks; i++) {
        if (!tn__gloo_touch(e, b, peer_after(e, i), tag)) { return false; }
    }
    return tn__gloo_finish(e, b);
}

/* Only two ranks take part, so these are counted per pair. An empty message is sent too: recv waits
 * for send. */
static bool point_to_point(tn__gloo *e, const tn_transfer *t, int64_t bytes) {
    tn__gloo_batch *b = &e->batches[0];
    tn_transfer same = {.kind = TN_SEND, .dtype = t->dtype, .count = t->count};
    uint64_t *number = t->kind == TN_SEND ? &e->sent[t->root] : &e->received[t->root];
    uint64_t tag = tag_of(&same, ++*number);
    bool fine = bytes == 0           ? tn__gloo_touch(e, b, t->root, tag)
                : t->kind == TN_SEND ? tn__gloo_send(e, b, t->root, tag, t->in, bytes)
                                     : tn__gloo_receive(e, b, t->root, tag, t->out, bytes);
    return fine && tn__gloo_finish(e, b);
}

bool tn__gloo_transfer(tn__gloo *e, const tn_transfer *t) {
    int64_t bytes = t->kind == TN_BARRIER ? 0 : t->count * (int64_t)tn_dtype_size(t->dtype);
    if (t->kind == TN_SEND || t->kind == TN_RECV) { return point_to_point(e, t, bytes); }
    uint64_t tag = tag_of(t, ++e->collectives);
    switch (t->kind) {
    case TN_ALL_REDUCE:
    case TN_REDUCE_SCATTER:
    case TN_REDUCE_TO_ROOT:
        return gloo_reduce(e, t, tag);
    case TN_BROADCAST:
        return gloo_broadcast(e, t, tag);
    case TN_ALL_GATHER:
    case TN_GATHER:
    case TN_SCATTER:
        return move_blocks(e, t, t->in, bytes, tag);
    case TN_ALL_TO_ALL:
        return all_to_all(e, t, bytes, tag);
    case TN_BARRIER:
        return gloo_barrier(e, tag);
    default: /* send and recv, done above */
        return true;
    }
}
