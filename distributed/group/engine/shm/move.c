/* Collectives of the engine "shm".
 *
 * Arriving, each rank says what it is about to do and where its buffers lie. All compare, and all
 * decide alike which way the bytes go:
 *
 *   directly   what others read lies in memory of alloc: each rank reads it from there into its own
 *              result. An all-reduce goes further: rank r reduces the r-th slice of all buffers and
 *              writes it into all of them, so each byte is read once and written once.
 *   staged     otherwise, a chunk at a time: each rank copies its part of the chunk into a slot
 *              that all see, all meet, each reads what it needs from the slots. A rank has two
 *              slots and uses them in turn: when it fills one again, all have arrived at the
 *              chunk between, hence left this one.
 *
 * Both read through a view: where the bytes of each rank are. Reductions are in the order of the
 * ranks, by one rank for each element, so the bits depend on nothing else.
 */
#include "distributed/group/engine/shm/shm.h"

#include <string.h>

/* Elements [at, at + count) of each part of the ranks' inputs. */
typedef struct view {
    const char *base[TN__SHM_RANKS];
    int64_t stride; /* bytes from one part of an input to the next */
    int64_t at, count;
} view;

/* Bytes of a reduction that are written to all ranks while they are in the first-level cache. */
enum { BLOCK = 8192 };

static int64_t size_of(const tn_transfer *t) {
    return (int64_t)tn_dtype_size(t->dtype);
}

static void copy_bytes(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && from && to != from) {
        memmove(to, from, (size_t)bytes);
    }
}

/* ---- Meeting --------------------------------------------------------------------------------- */

/* Of the collective at which all have met last. */
static const tn__shm_record *record_at(const tn__shm *e, int rank) {
    return &e->control->seats[rank].records[e->collectives % 2];
}

tn_status tn__shm_meet(tn__shm *e, const tn__shm_record *mine, double deadline) {
    e->collectives++;
    e->control->seats[e->base.rank].records[e->collectives % 2] = *mine;
    tn_status status = tn__shm_barrier(e, deadline);
    if (status != TN_OK) {
        return status;
    }
    const tn__fingerprint *prints[TN__SHM_RANKS] = {NULL};
    for (int r = 0; r < e->base.ranks; r++) {
        prints[r] = &record_at(e, r)->print;
    }
    char text[TN_ENGINE_WHY];
    if (tn__fingerprint_differ(prints, e->base.ranks, text, sizeof(text))) {
        return tn__shm_fail(e, TN_EMISMATCH, "%s", text);
    }
    return TN_OK;
}

static tn__shm_record record_of(tn__shm *e, const tn_transfer *t) {
    return (tn__shm_record){.print = tn__fingerprint_of(t),
                            .in = tn__shm_place_of(e, t->in),
                            .out = tn__shm_place_of(e, t->out),
                            .in_place = t->in == t->out};
}

/* Whether all ranks' inputs (and outputs) lie where all can reach them. */
static bool all_placed(const tn__shm *e, bool outputs) {
    bool placed = true;
    for (int r = 0; r < e->base.ranks; r++) {
        const tn__shm_record *theirs = record_at(e, r);
        placed &= theirs->in.region >= 0 && (!outputs || theirs->out.region >= 0);
    }
    return placed;
}

static bool any_in_place(const tn__shm *e) {
    bool any = false;
    for (int r = 0; r < e->base.ranks; r++) {
        any |= record_at(e, r)->in_place;
    }
    return any;
}

static bool goes_directly(const tn__shm *e, const tn_transfer *t) {
    /* 0 where there is none */
    const tn__shm_record *root = record_at(e, record_at(e, 0)->print.root);
    switch (t->kind) {
    case TN_ALL_REDUCE:
        return all_placed(e, true);
    case TN_REDUCE_TO_ROOT:
        return all_placed(e, false) && root->out.region >= 0;
    case TN_ALL_GATHER:
    case TN_REDUCE_SCATTER:
    case TN_GATHER:
        return all_placed(e, false);
    case TN_ALL_TO_ALL: /* in place, a rank would write what another still has to read */
        return all_placed(e, false) && !any_in_place(e);
    default:
        return root->in.region >= 0;
    }
}

/* ---- Reading through a view ------------------------------------------------------------------ */

static const char *part_of(const view *v, int rank, int64_t part) {
    return v->base[rank] + part * v->stride;
}

/* Element `at` of part `part` of my output. */
static char *mine_at(const tn_transfer *t, int64_t part, int64_t at) {
    return (char *)t->out + (part * t->count + at) * size_of(t);
}

/* Slice `rank` of n elements: [*begin, *end). Whole cache lines, except the last. */
static void slice_of(int64_t n, int rank, int ranks, int64_t *begin, int64_t *end) {
    int64_t each = (n / ranks + 64) / 64 * 64;
    *begin = each * rank < n ? each * rank : n;
    *end = n - *begin < each ? n : *begin + each;
}

/* Every rank's part `part`, reduced: elements [begin, end) of the view into the same of `to`. */
static void reduce_parts(const tn__shm *e, const tn_transfer *t, const view *v, int64_t part,
                         int64_t begin, int64_t end, char *to) {
    const void *in[TN__SHM_RANKS];
    for (int r = 0; r < e->base.ranks; r++) {
        in[r] = part_of(v, r, part) + begin * size_of(t);
    }
    tn__reduce_all(t->reduce, t->dtype, to + begin * size_of(t), in, e->base.ranks, end - begin);
}

/* My output of the view's elements. */
static void read_view(const tn__shm *e, const tn_transfer *t, const view *v) {
    int me = e->base.rank;
    int64_t bytes = v->count * size_of(t);
    switch (t->kind) {
    case TN_ALL_REDUCE:
        reduce_parts(e, t, v, 0, 0, v->count, mine_at(t, 0, v->at));
        break;
    case TN_REDUCE_TO_ROOT:
        if (me == t->root) {
            reduce_parts(e, t, v, 0, 0, v->count, mine_at(t, 0, v->at));
        }
        break;
    case TN_REDUCE_SCATTER:
        reduce_parts(e, t, v, me, 0, v->count, mine_at(t, 0, v->at));
        break;
    case TN_ALL_GATHER:
    case TN_GATHER:
        for (int r = 0; r < e->base.ranks && (t->kind == TN_ALL_GATHER || me == t->root); r++) {
            copy_bytes(mine_at(t, r, v->at), part_of(v, r, 0), bytes);
        }
        break;
    case TN_ALL_TO_ALL:
        for (int r = 0; r < e->base.ranks; r++) {
            copy_bytes(mine_at(t, r, v->at), part_of(v, r, me), bytes);
        }
        break;
    case TN_BROADCAST:
        copy_bytes(mine_at(t, 0, v->at), part_of(v, t->root, 0), bytes);
        break;
    case TN_SCATTER:
        copy_bytes(mine_at(t, 0, v->at), part_of(v, t->root, me), bytes);
        break;
    default:
        break;
    }
}

/* ---- Directly -------------------------------------------------------------------------------- */

/* My slice of a reduction, into all outputs that there are. */
static void reduce_directly(tn__shm *e, const tn_transfer *t, const view *v) {
    char *out[TN__SHM_RANKS] = {NULL};
    int outs = 0;
    for (int r = 0; r < e->base.ranks; r++) {
        if (t->kind == TN_ALL_REDUCE || r == t->root) {
            out[outs++] = tn__shm_at(e, record_at(e, r)->out);
        }
    }
    int64_t begin, end, step = BLOCK / size_of(t);
    slice_of(t->count, e->base.rank, e->base.ranks, &begin, &end);
    for (int64_t at = begin; at < end; at += step) {
        int64_t to = end - at < step ? end : at + step;
        reduce_parts(e, t, v, 0, at, to, out[0]);
        for (int i = 1; i < outs; i++) {
            copy_bytes(out[i] + at * size_of(t), out[0] + at * size_of(t), (to - at) * size_of(t));
        }
    }
}

static tn_status run_directly(tn__shm *e, const tn_transfer *t) {
    view v = {.stride = t->count * size_of(t), .count = t->count};
    for (int r = 0; r < e->base.ranks; r++) {
        v.base[r] = tn__shm_at(e, record_at(e, r)->in);
    }
    if (t->kind == TN_ALL_REDUCE || t->kind == TN_REDUCE_TO_ROOT) {
        reduce_directly(e, t, &v);
    } else {
        read_view(e, t, &v);
    }
    return tn__shm_barrier(e, t->deadline); /* nobody reads or writes my buffers after this */
}

/* ---- Staged ---------------------------------------------------------------------------------- */

static char *slot_of(const tn__shm *e, int rank, uint64_t chunk) {
    return e->slots + ((size_t)rank * 2 + chunk % 2) * e->slot_size;
}

/* How many parts of my input others may read. */
static int parts_of(const tn__shm *e, const tn_transfer *t) {
    bool is_root = e->base.rank == t->root;
    switch (t->kind) {
    case TN_BROADCAST:
        return is_root ? 1 : 0;
    case TN_SCATTER:
        return is_root ? e->base.ranks : 0;
    case TN_REDUCE_SCATTER:
    case TN_ALL_TO_ALL:
        return e->base.ranks;
    default:
        return 1;
    }
}

static bool has_many_parts(const tn_transfer *t) {
    return t->kind == TN_SCATTER || t->kind == TN_REDUCE_SCATTER || t->kind == TN_ALL_TO_ALL;
}

static void fill_slot(const tn__shm *e, const tn_transfer *t, const view *v) {
    int parts = parts_of(e, t);
    for (int64_t p = 0; p < parts; p++) {
        const char *from = (const char *)t->in + (p * t->count + v->at) * size_of(t);
        copy_bytes(slot_of(e, e->base.rank, e->chunks) + p * v->stride, from,
                   v->count * size_of(t));
    }
}

/* Where there are many ranks, each reduces a slice of the chunk in its slot, for the others to
 * read. */
static tn_status reduce_in_slots(tn__shm *e, const tn_transfer *t, const view *v) {
    int64_t begin, end;
    slice_of(v->count, e->base.rank, e->base.ranks, &begin, &end);
    reduce_parts(e, t, v, 0, begin, end, slot_of(e, e->base.rank, e->chunks));
    tn_status status = tn__shm_barrier(e, t->deadline);
    bool wanted = t->kind == TN_ALL_REDUCE || e->base.rank == t->root;
    for (int r = 0; r < e->base.ranks && wanted && status == TN_OK; r++) {
        slice_of(v->count, r, e->base.ranks, &begin, &end);
        copy_bytes(mine_at(t, 0, v->at + begin), part_of(v, r, 0) + begin * size_of(t),
                   (end - begin) * size_of(t));
    }
    return status;
}

static tn_status run_staged(tn__shm *e, const tn_transfer *t) {
    int64_t parts = has_many_parts(t) ? e->base.ranks : 1;
    int64_t most = (int64_t)e->slot_size / parts / size_of(t);
    bool sliced = (t->kind == TN_ALL_REDUCE || t->kind == TN_REDUCE_TO_ROOT) && e->base.ranks > 2;
    tn_status status = TN_OK;
    for (int64_t at = 0; at < t->count && status == TN_OK; at += most) {
        view v = {.at = at, .count = t->count - at < most ? t->count - at : most};
        v.stride = most * size_of(t);
        for (int r = 0; r < e->base.ranks; r++) {
            v.base[r] = slot_of(e, r, e->chunks);
        }
        if (parts == 1 && !sliced && t->in) { /* my own is nearer, and read already */
            v.base[e->base.rank] = (const char *)t->in + at * size_of(t);
        }
        fill_slot(e, t, &v);
        status = tn__shm_barrier(e, t->deadline);
        if (status == TN_OK && sliced) {
            status = reduce_in_slots(e, t, &v);
        } else if (status == TN_OK) {
            read_view(e, t, &v);
        }
        e->chunks++;
    }
    return status;
}

/* ---- Any of them ----------------------------------------------------------------------------- */

tn_status tn__shm_collective(tn__shm *e, const tn_transfer *t) {
    const tn__shm_record mine = record_of(e, t);
    tn_status status = tn__shm_meet(e, &mine, t->deadline);
    if (status != TN_OK || t->kind == TN_BARRIER || t->count <= 0) {
        return status;
    }
    return goes_directly(e, t) ? run_directly(e, t) : run_staged(e, t);
}
