/* tn_local_run: ranks as threads of this process, joined by the engine "local". */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"

#include <stdio.h>
#include <string.h>

typedef struct party {
    tn_store *store;
    int ranks;
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
    tn_group *world = tn__group_create("world", "local", p->store, me->rank, p->ranks, NULL, NULL);
    if (world) {
        p->f(world, p->user);
    }
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
    char why[TN_ENGINE_WHY];
    for (int r = from; r < p->ranks; r++) {
        tn_engine_options o = {
            .store = p->store, .rank = r, .ranks = p->ranks, .deadline = tn__now() + 1};
        tn_engine *e = tn_engine_new("local", &o, why);
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
            party_excuse(p, r);
            tn__raise(TN_ENOMEM, "local_run", "thread %d of %d: %s", r, p->ranks, strerror(status));
            return r;
        }
    }
    return p->ranks;
}

enum { MOST_RANKS = 1024 };

tn_status tn_local_run(int ranks, void (*f)(tn_group *world, void *user), void *user) {
    if (tn__pending()) {
        return tn_error();
    }
    if (ranks < 1 || ranks > MOST_RANKS) {
        return tn__raise(TN_EVALUE, "local_run", "%d ranks (1 to %d)", ranks, MOST_RANKS);
    }
    if (!f) {
        return tn__raise(TN_EVALUE, "local_run", "the function is NULL");
    }
    party p = {.store = tn_memory_store(), .ranks = ranks, .f = f, .user = user};
    guest *guests = tn__calloc((size_t)ranks, sizeof(*guests));
    if (!p.store || !guests) {
        tn_store_free(p.store);
        free(guests);
        return tn__raise(TN_ENOMEM, "local_run", "out of memory for %d ranks", ranks);
    }
    pthread_mutex_init(&p.lock, NULL);
    int started = party_start(&p, guests);
    for (int r = 0; r < started; r++) {
        pthread_join(guests[r].thread, NULL);
    }
    pthread_mutex_destroy(&p.lock);
    tn_store_free(p.store);
    free(guests);
    if (p.failed) {
        tn_error_give(&p.error);
    }
    return tn_error();
}
