/* Send and receive of the engine "shm".
 *
 * Each ordered pair of ranks has a lane, a ring of bytes with one writer and one reader. A message
 * is an envelope and the elements. The sender is done when the last byte is in the lane.
 *
 * A rank that has to wait, for any reason, takes what others have sent to it out of the lanes and
 * keeps it as letters until it receives them. So a send ends as soon as its receiver waits anywhere
 * in the engine, and two ranks that first send to each other and then receive do not block each
 * other.
 */
#include "core/memory.h"
#include "distributed/group/engine/shm/shm.h"

#include <string.h>

typedef struct envelope {
    int64_t count, bytes;
    int64_t dtype;
} envelope;

struct tn__shm_letter {
    tn__shm_letter *next;
    envelope about;
    int64_t got; /* bytes so far; only the last letter of a rank may be incomplete */
    char data[];
};

static tn__shm_lane *lane_of(const tn__shm *e, int from, int to) {
    return &e->lanes[(size_t)from * (size_t)e->base.ranks + (size_t)to];
}

static char *ring_of(const tn__shm *e, int from, int to) {
    return e->lane_bytes + ((size_t)from * (size_t)e->base.ranks + (size_t)to) * e->lane_size;
}

static int64_t least_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- The ring -------------------------------------------------------------------------------- */

/* At most a quarter of the ring, so that both sides can work at the same time. */
static int64_t lane_portion(const tn__shm *e, int64_t bytes) {
    return least_of(bytes, (int64_t)e->lane_size / 4);
}

static int64_t lane_available(const tn__shm *e, int from) {
    const tn__shm_lane *l = lane_of(e, from, e->base.rank);
    return (int64_t)(atomic_load_explicit(&l->written, memory_order_acquire) -
                     atomic_load_explicit(&l->taken, memory_order_relaxed));
}

/* Takes `bytes`, which are available. */
static void lane_take(tn__shm *e, int from, void *to, int64_t bytes) {
    tn__shm_lane *l = lane_of(e, from, e->base.rank);
    const char *ring = ring_of(e, from, e->base.rank);
    uint64_t taken = atomic_load_explicit(&l->taken, memory_order_relaxed);
    int64_t at = (int64_t)(taken % e->lane_size),
            first = least_of(bytes, (int64_t)e->lane_size - at);
    if (bytes > 0) {
        memcpy(to, ring + at, (size_t)first);
        memcpy((char *)to + first, ring, (size_t)(bytes - first));
        atomic_store_explicit(&l->taken, taken + (uint64_t)bytes, memory_order_release);
        tn__shm_ring(e, from);
    }
}

/* Writes as much as fits; returns how much. */
static int64_t lane_put(tn__shm *e, int to, const void *from, int64_t bytes) {
    tn__shm_lane *l = lane_of(e, e->base.rank, to);
    char *ring = ring_of(e, e->base.rank, to);
    uint64_t written = atomic_load_explicit(&l->written, memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(&l->taken, memory_order_acquire);
    int64_t n = least_of(bytes, (int64_t)(e->lane_size - (written - taken)));
    int64_t at = (int64_t)(written % e->lane_size), first = least_of(n, (int64_t)e->lane_size - at);
    if (n > 0) {
        memcpy(ring + at, from, (size_t)first);
        memcpy(ring, (const char *)from + first, (size_t)(n - first));
        atomic_store_explicit(&l->written, written + (uint64_t)n, memory_order_release);
        tn__shm_ring(e, to);
    }
    return n;
}

static tn_status write_all(tn__shm *e, int to, const void *data, int64_t bytes, double deadline) {
    tn_status status = TN_OK;
    int64_t done = 0;
    while (done < bytes && status == TN_OK) {
        tn__shm_wait w = tn__shm_wait_begin(e, to, deadline);
        int64_t n;
        while ((n = lane_put(e, to, (const char *)data + done, lane_portion(e, bytes - done))) ==
                   0 &&
               status == TN_OK) {
            status = tn__shm_wait_more(e, &w);
        }
        done += n;
    }
    return status;
}

static tn_status read_all(tn__shm *e, int from, void *data, int64_t bytes, double deadline) {
    tn_status status = TN_OK;
    int64_t done = 0;
    while (done < bytes && status == TN_OK) {
        tn__shm_wait w = tn__shm_wait_begin(e, from, deadline);
        w.comes = true;
        int64_t n;
        while ((n = lane_available(e, from)) == 0 && status == TN_OK) {
            status = tn__shm_wait_more(e, &w);
        }
        n = lane_portion(e, least_of(n, bytes - done));
        lane_take(e, from, (char *)data + done, n);
        done += n;
    }
    return status;
}

/* ---- Letters --------------------------------------------------------------------------------- */

static tn__shm_letter *last_letter(const tn__shm *e, int from) {
    tn__shm_letter *l = e->letters[from];
    while (l && l->next) {
        l = l->next;
    }
    return l;
}

/* A new letter for the message that begins in the lane. */
static tn__shm_letter *begin_letter(tn__shm *e, int from, tn__shm_letter *last) {
    envelope about;
    lane_take(e, from, &about, sizeof(about));
    tn__shm_letter *l = tn__malloc(sizeof(*l) + (size_t)about.bytes);
    if (!l) {
        tn__shm_fail(e, TN_ENOMEM, "rank %d has no memory for %lld bytes from rank %d",
                     e->base.rank, (long long)about.bytes, from);
        return NULL;
    }
    l->next = NULL;
    l->about = about;
    l->got = 0;
    *(last ? &last->next : &e->letters[from]) = l;
    return l;
}

static tn_status take_from(tn__shm *e, int from) {
    tn__shm_letter *l = last_letter(e, from);
    for (;;) {
        int64_t there = lane_available(e, from);
        if (l && l->got < l->about.bytes) {
            int64_t n = least_of(there, l->about.bytes - l->got);
            if (n == 0) { return TN_OK; }
            lane_take(e, from, l->data + l->got, n);
            l->got += n;
        } else if (there < (int64_t)sizeof(envelope)) {
            return TN_OK;
        } else {
            l = begin_letter(e, from, l);
            if (!l) { return tn__shm_failed(e); }
        }
    }
}

tn_status tn__shm_take_letters(tn__shm *e) {
    tn_status status = TN_OK;
    for (int r = 0; r < e->base.ranks && status == TN_OK; r++) {
        if (r != e->base.rank && r != e->reading) { status = take_from(e, r); }
    }
    return status;
}

void tn__shm_free_letters(tn__shm *e) {
    for (int r = 0; e->letters && r < e->base.ranks; r++) {
        while (e->letters[r]) {
            tn__shm_letter *l = e->letters[r];
            e->letters[r] = l->next;
            free(l);
        }
    }
}

/* ---- The operations -------------------------------------------------------------------------- */

tn_status tn__shm_send(tn__shm *e, const tn_transfer *t) {
    const envelope about = {.count = t->count,
                            .bytes = t->count * (int64_t)tn_dtype_size(t->dtype),
                            .dtype = (int64_t)t->dtype};
    tn_status status = write_all(e, t->root, &about, sizeof(about), t->deadline);
    return status != TN_OK ? status : write_all(e, t->root, t->in, about.bytes, t->deadline);
}

static tn_status check_envelope(tn__shm *e, const tn_transfer *t, const envelope *about) {
    if (about->count == t->count && about->dtype == (int64_t)t->dtype) { return TN_OK; }
    return tn__shm_fail(e, TN_EMISMATCH, "rank %d sends %s [%lld], but rank %d receives %s [%lld]",
                        t->root, tn_dtype_name((tn_dtype)about->dtype), (long long)about->count,
                        e->base.rank, tn_dtype_name(t->dtype), (long long)t->count);
}

/* The message that begins with a letter, or else in the lane. */
static tn_status receive_letter(tn__shm *e, const tn_transfer *t, const tn__shm_letter *letter) {
    envelope about = {0};
    tn_status status = TN_OK;
    int64_t got = 0;
    if (letter) {
        about = letter->about;
    } else {
        status = read_all(e, t->root, &about, sizeof(about), t->deadline);
    }
    if (status == TN_OK) { status = check_envelope(e, t, &about); }
    if (status == TN_OK && letter && letter->got > 0) {
        got = letter->got;
        memcpy(t->out, letter->data, (size_t)got);
    }
    return status != TN_OK
               ? status
               : read_all(e, t->root, (char *)t->out + got, about.bytes - got, t->deadline);
}

tn_status tn__shm_recv(tn__shm *e, const tn_transfer *t) {
    tn__shm_letter *letter = e->letters[t->root];
    if (letter) { e->letters[t->root] = letter->next; }
    e->reading = t->root;
    tn_status status = receive_letter(e, t, letter);
    e->reading = -1;
    free(letter);
    return status;
}
