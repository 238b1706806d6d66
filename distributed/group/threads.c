/* tn_local_run, tn_local_run_on: ranks as threads of this process, joined by the engine "local",
 * which sends tensors on devices staged, as every group of a host engine does. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

typedef struct party {
    const char *operation;
    tn_store *store;
    int ranks;
    const tn_device *devices; /* the default of each rank's thread; NULL: the CPU */
    void (*f)(tn_group *world, void *user);
    void *user;
    pthread_mutex_t lock;
    bool failed;
    tn_error_record error; /* the first that is not about a peer, else the first */
} party;

typedef struct guest {
    party *party;
    int rank;
    pthread_t thread;
} guest;

static void note_error(party *p) {
    tn_error_record record;
    pthread_mutex_lock(&p->lock);
    bool better = p->error.status == TN_EPEER; /* which follows from another's error */
    if (tn_error_take(&record) && (!p->failed || (better && record.status != TN_EPEER))) {
        p->failed = true;
        p->error = record;
    }
    pthread_mutex_unlock(&p->lock);
}

static void *party_attend(void *user) {
    guest *me = user;
    party *p = me->party;
    tn__quiet(1); /* the caller's thread raises it */
    if (p->devices) { tn_set_default_device(p->devices[me->rank]); /* it exists */ }
    tn_group *world = tn__group_create("world", "local", p->store, me->rank, p->ranks, NULL, NULL);
    if (world) { p->f(world, p->user); }
    if (tn__pending()) {
        char reason[512];
        snprintf(reason, sizeof(reason), "%s", tn_error_message());
        note_error(p);
        tn_group_abort(world, reason);
    }
    tn_group_free(world);
    tn__quiet(-1);
    return NULL;
}

/* Takes the seats of ranks that could not be started, and gives up for them. */
static void party_excuse(party *p, int from) {
    for (int r = from; r < p->ranks; r++) {
        tn_engine_options o = {
            .store = p->store, .rank = r, .ranks = p->ranks, .deadline = tn__now() + 1};
        tn_engine *e = tn_engine_new("local", &o);
        if (e) {
            e->abort(e, "a rank's thread could not be started");
            e->destroy(e);
        }
    }
}

/* Returns how many threads run. */
static int party_start(party *p, guest *guests) {
    for (int r = 0; r < p->ranks; r++) {
        guests[r] = (guest){.party = p, .rank = r};
        int status = pthread_create(&guests[r].thread, NULL, party_attend, &guests[r]);
        if (status != 0) {
            tn__quiet(1);
            party_excuse(p, r);
            tn__quiet(-1);
            tn_error_clear();
            tn__raise(TN_ENOMEM, p->operation, "thread %d of %d: %s", r, p->ranks,
                      strerror(status));
            return r;
        }
    }
    return p->ranks;
}

enum { MOST_RANKS = 1024 };

/* False after raising: a device is not there, or they are of two kinds, between which tensors are
 * not reduced. */
static bool devices_sound(const tn_device *devices, int n, const char *operation) {
    for (int r = 0; r < n; r++) {
        if (!tn__device_exists(devices[r], operation)) { return false; }
        if (devices[r].kind != devices[0].kind) {
            return tn__fail(
                TN_EDEVICE, operation,
                "rank 0 is on %s, but rank %d is on %s (the devices of a group are of one "
                "kind)",
                tn_device_text(devices[0]), r, tn_device_text(devices[r]));
        }
    }
    return true;
}

static bool party_sound(const party *p) {
    if (p->ranks < 1 || p->ranks > MOST_RANKS) {
        tn__raise(TN_EVALUE, p->operation, "%d ranks (1 to %d)", p->ranks, MOST_RANKS);
    } else if (!p->f) {
        tn__raise(TN_EVALUE, p->operation, "the function is NULL");
    }
    return !tn__pending();
}

static tn_status party_run(party p) {
    p.store = tn_memory_store();
    guest *guests = tn__calloc((size_t)p.ranks, sizeof(*guests));
    if (!p.store || !guests) {
        tn_store_free(p.store);
        free(guests);
        return tn__raise(TN_ENOMEM, p.operation, "out of memory for %d ranks", p.ranks);
    }
    pthread_mutex_init(&p.lock, NULL);
    int started = party_start(&p, guests);
    for (int r = 0; r < started; r++) {
        pthread_join(guests[r].thread, NULL);
    }
    pthread_mutex_destroy(&p.lock);
    tn_store_free(p.store);
    free(guests);
    if (p.failed) { tn_error_give(&p.error); }
    return tn_error();
}

tn_status tn_local_run(int ranks, void (*f)(tn_group *world, void *user), void *user) {
    party p = {.operation = "local_run", .ranks = ranks, .f = f, .user = user};
    return tn__pending() || !party_sound(&p) ? tn_error() : party_run(p);
}

tn_status tn_local_run_on(const tn_device *devices, int n, void (*f)(tn_group *world, void *user),
                          void *user) {
    party p = {.operation = "local_run_on", .ranks = n, .devices = devices, .f = f, .user = user};
    if (tn__pending() || !party_sound(&p)) { return tn_error(); }
    if (!devices) { return tn__raise(TN_EVALUE, p.operation, "the devices are NULL"); }
    return devices_sound(devices, n, p.operation) ? party_run(p) : tn_error();
}
