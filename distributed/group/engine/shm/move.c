/* Collectives of the engine "shm".
 *
 * On arrival each rank says what it is about to do and where its buffers are. All compare, and all
 * make the same choice of how the bytes move:
 *
 *   directly   what others read is in memory of alloc: each rank reads it from there into its own
 *              result. An all-reduce goes further: rank r reduces the r-th slice of all buffers and
 *              writes it into all of them, so each byte is read once and written once.
 *   staged     otherwise, a chunk at a time: each rank copies its part of the chunk into a slot
 *              that all see, all meet, each reads what it needs from the slots. A rank has two
 *              slots and uses them in turn: when it fills one again, all have arrived at the
 *              chunk between, and so have left this one.
 *
 * Both read through a view: where the bytes of each rank are.
 */
#include "distributed/group/engine/shm/shm.h"
#include "distributed/group/engine/view.h"

/* ---- Meeting --------------------------------------------------------------------------------- */

/* A rank's record of the last collective at which all have met. */
static const tn__shm_record *record_at(const tn__shm *e, int rank) {
    return &e->control->seats[rank].records[e->collectives % 2];
}

tn_status tn__shm_meet(tn__shm *e, const tn__shm_record *mine, double deadline) {
    e->collectives++;
    e->control->seats[e->base.rank].records[e->collectives % 2] = *mine;
    tn_status status = tn__shm_barrier(e, deadline);
    if (status != TN_OK) { return status; }
    char text[TN_ENGINE_WHY];
    if (tn__fingerprint_differ(&record_at(e, 0)->print, sizeof(tn__shm_seat), e->base.ranks, text,
                               sizeof(text))) {
        return tn__shm_fail(e, TN_EMISMATCH, "%s", text);
    }
    return TN_OK;
}

/* Whether all ranks' inputs (and outputs) are where all can reach them. */
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
    /* 0 if there is none */
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

/* ---- Directly -------------------------------------------------------------------------------- */

/* My slice of a reduction, into all outputs. */
static void reduce_directly(tn__shm *e, const tn_transfer *t, const tn__peer_view *v) {
    char *out[TN__SHM_RANKS] = {NULL};
    int outs = 0;
    for (int r = 0; r < e->base.ranks; r++) {
        if (t->kind == TN_ALL_REDUCE || r == t->root) {
            out[outs++] = tn__shm_at(e, record_at(e, r)->out);
        }
    }
    tn__view_reduce(v, t, out, outs);
}

static tn_status run_directly(tn__shm *e, const tn_transfer *t) {
    tn__peer_view v = tn__view_of(t, e->base.rank, e->base.ranks);
    for (int r = 0; r < e->base.ranks; r++) {
        v.base[r] = tn__shm_at(e, record_at(e, r)->in);
    }
    if (t->kind == TN_ALL_REDUCE || t->kind == TN_REDUCE_TO_ROOT) {
        reduce_directly(e, t, &v);
    } else {
        tn__view_read(&v, t);
    }
    return tn__shm_barrier(e, t->deadline); /* no rank reads or writes my buffers after this */
}

/* ---- Staged ---------------------------------------------------------------------------------- */

static char *slot_of(const tn__shm *e, int rank, uint64_t chunk) {
    return e->slots + ((size_t)rank * 2 + chunk % 2) * e->slot_size;
}

/* How many parts of my input the others may read. */
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

static void fill_slot(const tn__shm *e, const tn_transfer *t, const tn__peer_view *v) {
    int parts = parts_of(e, t);
    for (int64_t p = 0; p < parts; p++) {
        const char *from = (const char *)t->in + (p * t->count + v->at) * tn__view_size(t);
        tn__view_copy(slot_of(e, e->base.rank, e->chunks) + p * v->stride, from,
                      v->count * tn__view_size(t));
    }
}

/* With many ranks, each reduces a slice of the chunk in its slot, for the others to read. */
static tn_status reduce_in_slots(tn__shm *e, const tn_transfer *t, const tn__peer_view *v) {
    int64_t begin, end;
    tn__view_slice(v, e->base.rank, &begin, &end);
    tn__view_reduce_part(v, t, 0, begin, end, slot_of(e, e->base.rank, e->chunks));
    tn_status status = tn__shm_barrier(e, t->deadline);
    bool wanted = t->kind == TN_ALL_REDUCE || e->base.rank == t->root;
    for (int r = 0; r < e->base.ranks && wanted && status == TN_OK; r++) {
        tn__view_slice(v, r, &begin, &end);
        tn__view_copy(tn__view_out(t, 0, v->at + begin),
                      tn__view_part(v, r, 0) + begin * tn__view_size(t),
                      (end - begin) * tn__view_size(t));
    }
    return status;
}

static tn_status run_staged(tn__shm *e, const tn_transfer *t) {
    int64_t parts = has_many_parts(t) ? e->base.ranks : 1;
    int64_t most = (int64_t)e->slot_size / parts / tn__view_size(t);
    bool sliced = (t->kind == TN_ALL_REDUCE || t->kind == TN_REDUCE_TO_ROOT) && e->base.ranks > 2;
    tn_status status = TN_OK;
    for (int64_t at = 0; at < t->count && status == TN_OK; at += most) {
        tn__peer_view v = {.rank = e->base.rank,
                           .ranks = e->base.ranks,
                           .at = at,
                           .count = t->count - at < most ? t->count - at : most,
                           .stride = most * tn__view_size(t)};
        for (int r = 0; r < e->base.ranks; r++) {
            v.base[r] = slot_of(e, r, e->chunks);
        }
        if (parts == 1 && !sliced && t->in) { /* my own is nearer, and read already */
            v.base[e->base.rank] = (const char *)t->in + at * tn__view_size(t);
        }
        fill_slot(e, t, &v);
        status = tn__shm_barrier(e, t->deadline);
        if (status == TN_OK && sliced) {
            status = reduce_in_slots(e, t, &v);
        } else if (status == TN_OK) {
            tn__view_read(&v, t);
        }
        e->chunks++;
    }
    return status;
}

/* ---- Any of them ----------------------------------------------------------------------------- */

tn_status tn__shm_collective(tn__shm *e, const tn_transfer *t) {
    const tn__shm_record mine = {.print = tn__fingerprint_of(t),
                                 .in = tn__shm_place_of(e, t->in),
                                 .out = tn__shm_place_of(e, t->out),
                                 .in_place = t->in == t->out};
    tn_status status = tn__shm_meet(e, &mine, t->deadline);
    if (status != TN_OK || t->kind == TN_BARRIER || t->count <= 0) { return status; }
    return goes_directly(e, t) ? run_directly(e, t) : run_staged(e, t);
}
