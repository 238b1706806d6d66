/* The engine "staged": tensors on a device are moved by an engine for host memory, so any number of
 * ranks can share a GPU, and the bits are those of that engine.
 *
 *     device  --fetch-->  slot  --the inner engine-->  slot  --deliver-->  device
 *
 * A transfer goes in chunks, as many elements as a slot holds; each chunk is a transfer of the
 * inner engine. There are two slots of page-locked memory.
 * All copies are queued in one stream, in this order:
 *
 *     fetch 0, fetch 1, deliver 0, fetch 2, deliver 1, fetch 3, …
 *
 * so while the inner engine works on a chunk the next one is fetched and the one before is
 * delivered. A fetch into a slot comes after the delivery out of it, and once the fetch's mark is
 * reached the slot may be written. Transfers of host memory go to the inner engine as they are. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SLOT = 4 << 20, SLOTS = 2 };

static const double NAP = 20e-6, LONGEST_NAP = 1e-3;
/* Seconds for copies that are queued already, after a failure. */
static const double SETTLE = 5;

typedef struct staged {
    tn_engine base;
    tn_engine *inner;
    const tn_device_table *table; /* NULL: no transfer on a device yet */
    tn_device device;             /* of the stream */
    void *stream;
    char *slots[SLOTS];
    void *fetched[SLOTS]; /* the mark after the last fetch into it, or NULL */

    pthread_mutex_t lock;
    bool aborted;
    char reason[TN_ENGINE_WHY];
} staged;

/* ---- This rank's part of a transfer -----------------------------------------------------------
 */

/* Runs of `count` elements on this rank's device. */
typedef struct parts {
    int in, out;
    bool in_place; /* one place in the slot serves both */
} parts;

static parts parts_of(const tn_transfer *t, int rank, int ranks) {
    bool root = rank == t->root;
    switch (t->kind) {
    case TN_ALL_REDUCE:
        return (parts){1, 1, true};
    case TN_REDUCE_TO_ROOT:
        return (parts){1, root, true};
    case TN_BROADCAST:
        return (parts){root, !root || t->in != t->out, true};
    case TN_ALL_GATHER:
        return (parts){1, ranks, false};
    case TN_REDUCE_SCATTER:
        return (parts){ranks, 1, false};
    case TN_GATHER:
        return (parts){1, root ? ranks : 0, false};
    case TN_SCATTER:
        return (parts){root ? ranks : 0, 1, false};
    case TN_ALL_TO_ALL:
        return (parts){ranks, ranks, false};
    case TN_SEND:
        return (parts){1, 0, false};
    case TN_RECV:
        return (parts){0, 1, false};
    default:
        return (parts){0, 0, false};
    }
}

/* Elements of each run that a chunk takes: the same on every rank. */
static int64_t chunk_elements(const tn_transfer *t, int ranks) {
    int64_t runs = 2 * (int64_t)ranks, size = (int64_t)tn_dtype_size(t->dtype);
    if (t->kind == TN_ALL_REDUCE || t->kind == TN_REDUCE_TO_ROOT || t->kind == TN_BROADCAST ||
        t->kind == TN_SEND || t->kind == TN_RECV) {
        runs = 1;
    }
    int64_t n = SLOT / (runs * size);
    return n > 0 ? n : 1;
}

/* One transfer in progress. */
typedef struct journey {
    const tn_transfer *t;
    parts have;
    int64_t size; /* bytes of an element */
    int64_t chunk, chunks;
} journey;

/* Elements of chunk i, from element i * j->chunk of each run. */
static int64_t elements_of(const journey *j, int64_t i) {
    int64_t left = j->t->count - i * j->chunk;
    return left < j->chunk ? left : j->chunk;
}

/* ---- Failing and waiting --------------------------------------------------------------------- */

static tn_status device_failed(const staged *s, tn_status status) {
    return tn__raise(status == TN_OK ? TN_EDEVICE : status, NULL, "%s: %s",
                     tn_device_text(s->device), s->table->reason());
}

static tn_status was_aborted(staged *s) {
    pthread_mutex_lock(&s->lock);
    bool aborted = s->aborted;
    if (aborted) { tn__raise(TN_EPEER, NULL, "%s", s->reason); }
    pthread_mutex_unlock(&s->lock);
    return tn_error();
}

/* Waits until the device has reached the mark. Failures of other ranks are left to the inner
 * engine. */
static tn_status await_mark(staged *s, void *mark, double deadline) {
    double nap = NAP, begun = tn__now();
    while (!s->table->mark_reached(mark)) {
        double now = tn__now();
        tn_status status = was_aborted(s);
        if (status != TN_OK) { return status; }
        if (now >= deadline) {
            return tn__raise(TN_EPEER, NULL, "%s has not reached it within %.3g seconds",
                             tn_device_text(s->device), deadline - begun);
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
        nap = nap < LONGEST_NAP ? 1.5 * nap : nap;
    }
    tn_status status = s->table->mark_wait(mark);
    return status == TN_OK ? TN_OK : device_failed(s, status);
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* Where the results of the slot's chunk of n elements are. */
static char *results_in(const journey *j, char *slot, int64_t n) {
    return j->have.in_place ? slot : slot + j->have.in * n * j->size;
}

static tn_status fetch_piece(staged *s, const journey *j, int64_t i) {
    int64_t n = elements_of(j, i), bytes = n * j->size;
    char *slot = s->slots[i % SLOTS];
    const char *from = (const char *)j->t->in + i * j->chunk * j->size;
    tn_status status = TN_OK;
    for (int p = 0; p < j->have.in && bytes > 0 && status == TN_OK; p++) {
        status = s->table->stream_copy(s->stream, slot + p * bytes,
                                       from + p * j->t->count * j->size, (size_t)bytes);
    }
    s->table->mark_free(s->fetched[i % SLOTS]);
    s->fetched[i % SLOTS] = status == TN_OK ? s->table->stream_mark(s->stream) : NULL;
    return s->fetched[i % SLOTS] ? TN_OK : device_failed(s, status);
}

static tn_status deliver_piece(staged *s, const journey *j, int64_t i) {
    int64_t n = elements_of(j, i), bytes = n * j->size;
    const char *slot = results_in(j, s->slots[i % SLOTS], n);
    char *to = (char *)j->t->out + i * j->chunk * j->size;
    tn_status status = TN_OK;
    for (int p = 0; p < j->have.out && bytes > 0 && status == TN_OK; p++) {
        status = s->table->stream_copy(s->stream, to + p * j->t->count * j->size, slot + p * bytes,
                                       (size_t)bytes);
    }
    return status == TN_OK ? TN_OK : device_failed(s, status);
}

/* The inner engine's share of the work. */
static tn_status reduce_piece(staged *s, const journey *j, int64_t i) {
    int64_t n = elements_of(j, i);
    char *slot = s->slots[i % SLOTS];
    tn_transfer t = *j->t;
    t.device = tn_cpu();
    t.ready = NULL;
    t.launched = NULL;
    t.count = n;
    bool is_input = j->have.in > 0 || t.kind == TN_BROADCAST;
    bool is_output = j->have.out > 0 || t.kind == TN_BROADCAST;
    t.in = is_input ? slot : NULL;
    t.out = is_output ? results_in(j, slot, n) : NULL;
    return s->inner->run(s->inner, &t);
}

static tn_status staged_travel(staged *s, const journey *j) {
    tn_status status = fetch_piece(s, j, 0);
    for (int64_t i = 0; i < j->chunks && status == TN_OK; i++) {
        if (i + 1 < j->chunks) { status = fetch_piece(s, j, i + 1); }
        if (status == TN_OK) { status = await_mark(s, s->fetched[i % SLOTS], j->t->deadline); }
        if (status == TN_OK) { status = reduce_piece(s, j, i); }
        if (status == TN_OK) { status = deliver_piece(s, j, i); }
    }
    return status;
}

/* ---- A transfer on a device ------------------------------------------------------------------ */

static bool make_slots(staged *s) {
    for (int i = 0; i < SLOTS; i++) {
        if (!s->slots[i]) { s->slots[i] = s->table->host_alloc(SLOT); }
        if (!s->slots[i]) { return false; }
    }
    return true;
}

/* Makes a stream on t's device, and slots. */
static tn_status staged_prepare(staged *s, const tn_transfer *t) {
    if (s->stream && tn__same_device(s->device, t->device)) { return TN_OK; }
    s->table = tn__device_table(t->device);
    if (!s->table) {
        return tn__raise(TN_EDEVICE, NULL, "there is no device %s", tn_device_text(t->device));
    }
    s->table->stream_free(s->stream);
    s->device = t->device;
    s->stream = s->table->stream_new(t->device.index);
    return s->stream && make_slots(s) ? TN_OK : device_failed(s, TN_OK);
}

/* After a failure: waits, since queued copies still use the tensors and the slots. */
static void staged_settle(staged *s) {
    void *mark = s->stream ? s->table->stream_mark(s->stream) : NULL;
    double end = tn__now() + SETTLE;
    while (mark && !s->table->mark_reached(mark) && tn__now() < end) {
        nanosleep(&(struct timespec){.tv_nsec = (long)(LONGEST_NAP * 1e9)}, NULL);
    }
    if (mark) { s->table->mark_free(mark); }
}

/* All is queued: the program may continue. This still waits for the end, since a failure belongs to
 * this operation. */
static tn_status staged_finish(staged *s, const tn_transfer *t) {
    void *end = s->table->stream_mark(s->stream);
    if (!end) { return device_failed(s, TN_OK); }
    if (t->launched) { t->launched(t->launched_user, end); }
    tn_status status = await_mark(s, end, t->deadline);
    if (!t->launched) { s->table->mark_free(end); }
    return status;
}

static tn_status run_on_device(staged *s, const tn_transfer *t) {
    tn_status status = staged_prepare(s, t);
    if (status == TN_OK && t->ready) {
        status = s->table->stream_join(s->stream, t->ready);
        status = status == TN_OK ? TN_OK : device_failed(s, status);
    }
    if (status != TN_OK) { return status; }
    journey j = {.t = t,
                 .have = parts_of(t, s->base.rank, s->base.ranks),
                 .size = (int64_t)tn_dtype_size(t->dtype),
                 .chunk = chunk_elements(t, s->base.ranks)};
    j.chunks = t->count > 0 ? (t->count + j.chunk - 1) / j.chunk : 1;
    status = staged_travel(s, &j);
    status = status == TN_OK ? staged_finish(s, t) : status;
    if (status != TN_OK) { staged_settle(s); }
    return status;
}

/* ---- The engine ------------------------------------------------------------------------------ */

static tn_status staged_run(tn_engine *base, const tn_transfer *t) {
    staged *s = (staged *)base;
    return t->device.kind == TN_CPU ? s->inner->run(s->inner, t) : run_on_device(s, t);
}

static void staged_stop(tn_engine *base, const char *reason) {
    staged *s = (staged *)base;
    pthread_mutex_lock(&s->lock);
    if (!s->aborted) {
        s->aborted = true;
        snprintf(s->reason, sizeof(s->reason), "%s", reason ? reason : "aborted");
    }
    pthread_mutex_unlock(&s->lock);
    s->inner->abort(s->inner, reason);
}

static void *staged_alloc(tn_engine *base, size_t bytes, double deadline) {
    tn_engine *inner = ((staged *)base)->inner;
    return inner->alloc(inner, bytes, deadline);
}

static void staged_release(tn_engine *base, void *memory) {
    tn_engine *inner = ((staged *)base)->inner;
    inner->free(inner, memory);
}

static void staged_leave(tn_engine *base) {
    tn_engine *inner = ((staged *)base)->inner;
    inner->leave(inner);
}

static void staged_destroy(tn_engine *base) {
    staged *s = (staged *)base;
    for (int i = 0; i < SLOTS && s->table; i++) {
        s->table->mark_free(s->fetched[i]);
    }
    if (s->table) { s->table->stream_free(s->stream); }
    for (int i = 0; i < SLOTS && s->table; i++) {
        s->table->host_free(s->slots[i], SLOT);
    }
    s->inner->destroy(s->inner);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

tn_engine *tn__staged_new(tn_engine *inner) {
    staged *s = tn__calloc_for(1, sizeof(*s), NULL);
    if (!s) {
        inner->destroy(inner);
        return NULL;
    }
    s->inner = inner;
    pthread_mutex_init(&s->lock, NULL);
    s->base = (tn_engine){.size = sizeof(tn_engine),
                          .version = TN_ENGINE_VERSION,
                          .devices = 1u << TN_CPU | 1u << TN_CUDA,
                          .name = "staged",
                          .rank = inner->rank,
                          .ranks = inner->ranks,
                          .vague = inner->vague,
                          .run = staged_run,
                          .abort = staged_stop,
                          .alloc = inner->alloc ? staged_alloc : NULL,
                          .free = inner->alloc ? staged_release : NULL,
                          .leave = inner->leave ? staged_leave : NULL,
                          .destroy = staged_destroy};
    return &s->base;
}
