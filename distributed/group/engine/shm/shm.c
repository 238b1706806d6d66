/* The engine "shm": ranks are processes of one host. shm.h says how its parts fit together.
 *
 * Joining: rank 0 makes the block and writes to the store where it is; the others open it, say so
 * in the store, and take their seats; then all meet twice, to open each other's processes in
 * between. From there on the store is not needed.
 */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/engine/shm/shm.h"
#include "distributed/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

const uint64_t tn__shm_magic = UINT64_C(0x3130306d68736e74); /* "tnshm001" */

/* Slots of 512 KiB, smaller where many ranks share the cache. */
enum { SLOT = 1 << 19, ALL_SLOTS = 16 << 20, LANES = 1 << 20, LEAST_LANE = 1024 };

/* Other ranks wait for rank 0 this long past the deadline, in seconds: it can say who is
 * missing. */
static const double GRACE = 1;

/* ---- The block ------------------------------------------------------------------------------- */

/* Where the parts of the block begin. */
typedef struct layout {
    size_t lanes, lane_bytes, slots, bytes;
    size_t lane_size, slot_size;
} layout;

static layout lay_out(int count) {
    size_t ranks = (size_t)count, pairs = ranks * ranks;
    size_t slot = ALL_SLOTS / ranks < SLOT ? ALL_SLOTS / ranks : SLOT;
    size_t lane = LANES / ranks > LEAST_LANE ? LANES / ranks : LEAST_LANE;
    layout l = {.slot_size = tn__shm_round(slot), .lane_size = lane / 64 * 64};
    l.lanes = tn__shm_round(sizeof(tn__shm_control) + ranks * sizeof(tn__shm_seat));
    l.lane_bytes = tn__shm_round(l.lanes + pairs * sizeof(tn__shm_lane));
    l.slots = tn__shm_round(l.lane_bytes + pairs * l.lane_size);
    l.bytes = l.slots + 2 * ranks * l.slot_size;
    return l;
}

size_t tn__shm_block(int ranks) {
    return lay_out(ranks).bytes;
}

static tn_status map_block(tn__shm *e, int fd) {
    layout l = lay_out(e->base.ranks);
    char *base = mmap(NULL, l.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return tn__raise(TN_ENOMEM, NULL, "%zu bytes of shared memory: %s", l.bytes,
                         strerror(errno));
    }
    e->control = (tn__shm_control *)(void *)base;
    e->lanes = (tn__shm_lane *)(void *)(base + l.lanes);
    e->lane_bytes = base + l.lane_bytes;
    e->slots = base + l.slots;
    e->lane_size = l.lane_size;
    e->slot_size = l.slot_size;
    return TN_OK;
}

static void unmap_block(tn__shm *e) {
    munmap(e->control, lay_out(e->base.ranks).bytes);
    e->control = NULL;
}

static void take_seat(tn__shm *e) {
    atomic_store(&e->control->seats[e->base.rank].pid, (int)getpid());
}

/* ---- Rank 0 ---------------------------------------------------------------------------------- */

/* The descriptor of a new block, mapped and ready; -1 with errno after raising. */
static int make_block(tn__shm *e, uint64_t nonce) {
    size_t bytes = lay_out(e->base.ranks).bytes;
    int fd = tn__shm_create(bytes), failed = fd < 0 ? errno : tn__shm_reserve(fd, 0, bytes);
    if (failed) {
        tn__raise(TN_ENOMEM, NULL, "%zu bytes of shared memory: %s", bytes, strerror(failed));
    } else if (map_block(e, fd) != TN_OK) {
        failed = ENOMEM;
    }
    if (failed) {
        if (fd >= 0) { close(fd); }
        errno = failed;
        return -1;
    }
    e->control->magic = tn__shm_magic;
    e->control->nonce = nonce;
    e->control->bytes = bytes;
    e->control->ranks = e->base.ranks;
    take_seat(e);
    return fd;
}

/* Waits until all others have the block, or one says why not. */
static tn_status await_others(tn__shm *e, const tn_engine_options *o) {
    tn_status status = TN_OK;
    for (int r = 1; r < o->ranks && status == TN_OK; r++) {
        char key[32];
        snprintf(key, sizeof(key), "joined/%d", r);
        tn_store_call c = {.kind = TN_STORE_GET, .key = key, .deadline = o->deadline};
        status = o->store->run(o->store, &c);
        size_t bytes = c.value.bytes;
        if (status != TN_OK) {
            status = tn__shm_fail(e, TN_EPEER, "rank %d has not joined: %s", r, c.why);
        } else if (bytes > 0) {
            status = tn__shm_fail(e, TN_EPEER, "rank %d could not join: %.*s", r,
                                  (int)(bytes < 400 ? bytes : 400), (char *)c.value.data);
        }
        free(c.value.data);
    }
    return status;
}

static tn_status shm_host(tn__shm *e, const tn_engine_options *o, int *fd) {
    tn__shm_announcement a = {.process = tn__shm_this_process()};
    if (getrandom(&a.nonce, sizeof(a.nonce), 0) != sizeof(a.nonce)) {
        a.nonce = (uint64_t)(tn__now() * 1e9) ^ (uint64_t)getpid() << 32;
    }
    *fd = a.fd = make_block(e, a.nonce);
    a.failed = a.fd < 0 ? errno : 0;
    char why[TN_STORE_WHY];
    tn_status status = tn__store_put(o->store, "block", &a, sizeof(a), o->deadline, why);
    if (a.failed) { return TN_ENOMEM; }
    if (status != TN_OK) { return tn__raise(status, NULL, "%s", why); }
    return await_others(e, o) == TN_OK ? TN_OK : tn__shm_raise(e);
}

/* ---- The others ------------------------------------------------------------------------------ */

/* The announced process may have ended since, and its number may have been reused. */
static tn_status open_block(tn__shm *e, const tn__shm_announcement *a) {
    if (a->failed) {
        return tn__raise(TN_ENOMEM, NULL, "rank 0 has no shared memory: %s", strerror(a->failed));
    }
    int fd = tn__shm_open(&a->process, a->fd, tn__shm_block(e->base.ranks));
    const char *reason = fd >= 0 || errno == ESTALE ? "it is something else"
                         : errno == ESRCH           ? "that process has ended"
                         : errno == EPERM           ? "it is another user's"
                                                    : strerror(errno);
    if (fd >= 0) {
        tn_status status = map_block(e, fd);
        close(fd);
        if (status != TN_OK) { return status; }
        if (e->control->magic == tn__shm_magic && e->control->nonce == a->nonce &&
            e->control->ranks == e->base.ranks &&
            atomic_load(&e->control->seats[0].pid) == a->process.pid) {
            e->host = a->process;
            return TN_OK;
        }
        unmap_block(e);
    }
    return tn__raise(
        TN_EPEER, NULL,
        "the memory of rank 0 (process %d) cannot be opened: %s (the ranks of shm must "
        "be on one host, in one container, and of one user)",
        (int)a->process.pid, reason);
}

static tn_status shm_join(tn__shm *e, const tn_engine_options *o) {
    tn_store_call get = {.kind = TN_STORE_GET, .key = "block", .deadline = o->deadline};
    tn_status status = o->store->run(o->store, &get);
    if (status != TN_OK) { return tn__raise(status, NULL, "%s", get.why); }
    tn__shm_announcement a = {.failed = EPROTO};
    if (get.value.bytes == sizeof(a)) { memcpy(&a, get.value.data, sizeof(a)); }
    free(get.value.data);
    status = open_block(e, &a);
    if (status == TN_OK) { take_seat(e); }
    char key[32], why[TN_STORE_WHY];
    const char *said = tn__error_why();
    snprintf(key, sizeof(key), "joined/%d", o->rank);
    status = tn__store_put(o->store, key, said, strlen(said), o->deadline, why);
    tn__raise(status, NULL, "%s", why);
    return tn_error();
}

/* ---- The engine ------------------------------------------------------------------------------ */

static tn_status shm_run(tn_engine *base, const tn_transfer *t) {
    tn__shm *e = (tn__shm *)base;
    tn_status status = tn__shm_failed(e);
    if (status == TN_OK) {
        tn__shm_enter(e, (int)t->kind, t->sequence);
        status = t->kind == TN_SEND   ? tn__shm_send(e, t)
                 : t->kind == TN_RECV ? tn__shm_recv(e, t)
                                      : tn__shm_collective(e, t);
    }
    if (status == TN_OK) {
        tn__shm_leave(e);
    } else {
        tn__shm_raise(e);
    }
    return status;
}

static void shm_stop(tn_engine *base, const char *reason) {
    tn__shm_fail((tn__shm *)base, TN_EPEER, "%s", reason ? reason : "aborted");
}

static tn_status shm_check(tn_engine *base, bool all) {
    tn__shm *e = (tn__shm *)base;
    return tn__shm_look(e, all) == TN_OK ? TN_OK : tn__shm_raise(e);
}

static void shm_leave(tn_engine *base) {
    tn__shm *e = (tn__shm *)base;
    atomic_store_explicit(&e->control->seats[base->rank].left, true, memory_order_release);
    for (int r = 0; r < base->ranks; r++) {
        tn__shm_ring(e, r);
    }
}

static void shm_destroy(tn_engine *base) {
    tn__shm *e = (tn__shm *)base;
    if (!e) { return; }
    if (e->control) {
        shm_leave(base);
        unmap_block(e);
    }
    for (int r = 0; e->peers && r < base->ranks; r++) {
        if (e->peers[r].fd >= 0) { close(e->peers[r].fd); }
    }
    tn__shm_free_all(e);
    tn__shm_free_letters(e);
    pthread_mutex_destroy(&e->lock);
    free(e->letters);
    free(e->peers);
    free(e);
}

static tn__shm *shm_make(const tn_engine_options *o) {
    tn__shm *e = tn__calloc(1, sizeof(*e));
    if (!e) { return NULL; }
    e->base = (tn_engine){.size = sizeof(tn_engine),
                          .version = TN_ENGINE_VERSION,
                          .devices = 1u << TN_CPU,
                          .name = "shm",
                          .rank = o->rank,
                          .ranks = o->ranks,
                          .run = shm_run,
                          .abort = shm_stop,
                          .alloc = tn__shm_alloc,
                          .free = tn__shm_free,
                          .leave = shm_leave,
                          .check = shm_check,
                          .destroy = shm_destroy};
    pthread_mutex_init(&e->lock, NULL);
    e->reading = -1;
    e->peers = tn__malloc((size_t)o->ranks * sizeof(*e->peers));
    e->letters = tn__calloc((size_t)o->ranks, sizeof(tn__shm_letter *));
    for (int r = 0; e->peers && r < o->ranks; r++) {
        e->peers[r] = (struct pollfd){.fd = -1, .events = POLLIN};
    }
    e->spin = sysconf(_SC_NPROCESSORS_ONLN) >= o->ranks; /* each rank may be bound to one of them */
    if (!e->peers || !e->letters) {
        shm_destroy(&e->base);
        return NULL;
    }
    return e;
}

/* All have the block: meet, and from now on notice when a rank ends. */
static tn_status shm_meet(tn__shm *e, const tn_engine_options *o) {
    double deadline = o->rank == 0 ? o->deadline : o->deadline + GRACE;
    tn_status status = tn__shm_barrier(e, deadline);
    status = status == TN_OK ? tn__shm_watch(e) : status;
    status = status == TN_OK ? tn__shm_barrier(e, deadline) : status;
    return status == TN_OK ? TN_OK : tn__shm_raise(e); /* who has met may have failed since */
}

tn_engine *tn__shm_new(const tn_engine_options *o) {
    if (o->ranks < 1 || o->ranks > TN__SHM_RANKS || o->rank < 0 || o->rank >= o->ranks) {
        return tn__fail_null(TN_EVALUE, NULL, "rank %d of %d (1 to %d ranks)", o->rank, o->ranks,
                             TN__SHM_RANKS);
    }
    tn__shm *e = shm_make(o);
    if (!e) { return tn__fail_null(TN_ENOMEM, NULL, "out of memory"); }
    int fd = -1;
    tn_status status = o->rank == 0 ? shm_host(e, o, &fd) : shm_join(e, o);
    status = status == TN_OK ? shm_meet(e, o) : status;
    if (fd >= 0) { close(fd); }
    if (status != TN_OK) {
        shm_destroy(&e->base);
        return NULL;
    }
    return &e->base;
}
