/* The engine "local": ranks are threads of one process. The one to read first.
 *
 * All ranks share a hub (local_hub.h). A collective is: arrive, and say where my buffers are; when
 * all have arrived, do my share of the work, reading and writing the buffers of the others directly
 * (view.h); leave when all have done theirs. Rank r's share of a reduction is the r-th slice of the
 * elements: it reduces that slice in the order of the ranks and writes the result to every rank
 * that wants it. So the bits never depend on timing, and a buffer may be both in and out.
 */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/engine/local_hub.h"
#include "distributed/group/engine/view.h"
#include "distributed/group/fingerprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct local {
    tn_engine base;
    tn__hub *hub;
} local;

/* ---- Collectives ----------------------------------------------------------------------------- */

/* Under the lock: fails if a rank that has arrived does something else. */
static tn_status compare_seats(local *e, const tn_transfer *t) {
    tn__hub *h = e->hub;
    const tn__fingerprint mine = tn__fingerprint_of(t);
    for (int r = 0; r < h->ranks; r++) {
        const tn__fingerprint other = tn__fingerprint_of(&h->seats[r].t);
        if (h->seats[r].here && !tn__fingerprint_same(&mine, &other)) {
            char ours[128], theirs[128];
            tn__transfer_text(t, ours, sizeof(ours));
            tn__transfer_text(&h->seats[r].t, theirs, sizeof(theirs));
            return tn__hub_die(h, TN_EMISMATCH, "rank %d is in %s, but rank %d is in %s",
                               e->base.rank, ours, r, theirs);
        }
    }
    return TN_OK;
}

/* Under the lock: takes my seat, and waits until all ranks have theirs. Once all have arrived the
 * collective takes place, whatever else happens: no buffer goes away during it. */
static tn_status hub_arrive(local *e, const tn_transfer *t) {
    tn__hub *h = e->hub;
    tn__seat *mine = &h->seats[e->base.rank];
    tn_status status = h->dead != TN_OK ? h->dead : compare_seats(e, t);
    if (status != TN_OK) { return status; }
    mine->here = true;
    mine->t = *t;
    uint64_t round = h->round;
    if (++h->arrived == h->ranks) {
        h->round++;
        pthread_cond_broadcast(&h->changed);
    }
    while (status == TN_OK && h->round == round) {
        status = tn__hub_check(h);
        if (status == TN_OK) { status = tn__hub_wait(h, e->base.rank, t); }
    }
    return h->round != round ? TN_OK : status;
}

/* Under the lock: gives up my seat when all have done their share; a share never waits. */
static void hub_depart(tn__hub *h) {
    uint64_t round = h->round;
    if (++h->done == h->ranks) {
        for (int r = 0; r < h->ranks; r++) {
            h->seats[r].here = false;
            h->seats[r].finished++;
        }
        h->arrived = h->done = 0;
        h->round++;
        pthread_cond_broadcast(&h->changed);
    }
    while (h->round == round) {
        pthread_cond_wait(&h->changed, &h->lock);
    }
}

/* My share, while all ranks' buffers can be read and written. */
static void hub_share(const local *e, const tn_transfer *t) {
    const tn__hub *h = e->hub;
    char *out[TN__VIEW_RANKS]; /* of the ranks that want a reduction */
    int outs = 0;
    tn__peer_view v = tn__view_of(t, e->base.rank, h->ranks);
    for (int r = 0; r < h->ranks; r++) {
        v.base[r] = h->seats[r].t.in;
        if (t->kind == TN_ALL_REDUCE || r == t->root) { out[outs++] = h->seats[r].t.out; }
    }
    if (t->kind == TN_ALL_REDUCE || t->kind == TN_REDUCE_TO_ROOT) {
        tn__view_reduce(&v, t, out, outs);
    } else {
        tn__view_read(&v, t);
    }
}

static tn_status run_collective(local *e, const tn_transfer *t) {
    tn__hub *h = e->hub;
    tn_transfer mine = *t;
    void *copy = NULL;
    if (t->kind == TN_ALL_TO_ALL && t->in == t->out && t->count > 0) {
        /* Only here do others read a buffer as my in while I write it as my out. */
        size_t bytes = (size_t)(t->count * h->ranks) * tn_dtype_size(t->dtype);
        copy = tn__malloc(bytes);
        if (!copy) { return TN_ENOMEM; }
        mine.in = memcpy(copy, t->in, bytes);
    }
    pthread_mutex_lock(&h->lock);
    tn_status status = hub_arrive(e, &mine);
    if (status == TN_OK) {
        pthread_mutex_unlock(&h->lock);
        if (t->count > 0) { hub_share(e, &mine); }
        pthread_mutex_lock(&h->lock);
        hub_depart(h);
    }
    pthread_mutex_unlock(&h->lock);
    free(copy);
    return status;
}

/* ---- Send and receive ------------------------------------------------------------------------ */

static tn_status send_parcel(local *e, const tn_transfer *t) {
    tn__hub *h = e->hub;
    int64_t bytes = t->count * tn__view_size(t);
    tn__parcel *p = tn__malloc(sizeof(*p) + (size_t)bytes);
    if (!p) { return TN_ENOMEM; }
    *p = (tn__parcel){.from = e->base.rank, .to = t->root, .dtype = t->dtype, .count = t->count};
    tn__view_copy(p->data, t->in, bytes);
    pthread_mutex_lock(&h->lock);
    tn__hub_send(h, p);
    h->seats[e->base.rank].finished++;
    tn_status status = h->dead;
    pthread_mutex_unlock(&h->lock);
    return status;
}

static tn_status receive_parcel(local *e, const tn_transfer *t) {
    tn__hub *h = e->hub;
    pthread_mutex_lock(&h->lock);
    tn__parcel *p = NULL;
    tn_status status = h->dead;
    while (status == TN_OK && !(p = tn__hub_take(h, t->root, e->base.rank))) {
        status = h->seats[t->root].left ? tn__hub_check(h) : tn__hub_wait(h, e->base.rank, t);
    }
    if (p && (p->dtype != t->dtype || p->count != t->count)) {
        status =
            tn__hub_die(h, TN_EMISMATCH, "rank %d sends %s [%lld], but rank %d receives %s [%lld]",
                        t->root, tn_dtype_name(p->dtype), (long long)p->count, e->base.rank,
                        tn_dtype_name(t->dtype), (long long)t->count);
    } else if (p) {
        tn__view_copy(t->out, p->data, t->count * tn__view_size(t));
        h->seats[e->base.rank].finished++;
    }
    pthread_mutex_unlock(&h->lock);
    free(p);
    return status;
}

/* ---- The engine ------------------------------------------------------------------------------ */

static tn_status local_run(tn_engine *base, const tn_transfer *t) {
    local *e = (local *)base;
    tn_status status = t->kind == TN_SEND   ? send_parcel(e, t)
                       : t->kind == TN_RECV ? receive_parcel(e, t)
                                            : run_collective(e, t);
    if (status != TN_OK) {
        pthread_mutex_lock(&e->hub->lock);
        if (e->hub->dead == TN_OK) { /* no memory: the peers wait for this rank */
            tn__hub_die(e->hub, TN_EPEER, "a rank is out of memory");
            tn__raise(status, NULL, "out of memory");
        } else {
            tn__raise(status, NULL, "%s", e->hub->reason);
        }
        pthread_mutex_unlock(&e->hub->lock);
    }
    return status;
}

static void local_stop(tn_engine *base, const char *reason) {
    tn__hub *h = ((local *)base)->hub;
    pthread_mutex_lock(&h->lock);
    tn__hub_die(h, TN_EPEER, "%s", reason);
    pthread_mutex_unlock(&h->lock);
}

static tn_status local_check(tn_engine *base, bool all) {
    tn__hub *h = ((local *)base)->hub;
    pthread_mutex_lock(&h->lock);
    tn_status status = h->dead == TN_OK && all ? tn__hub_check(h) : h->dead;
    tn__raise(status, NULL, "%s", h->reason);
    pthread_mutex_unlock(&h->lock);
    return status;
}

static void local_destroy(tn_engine *base) {
    tn__hub_leave(((local *)base)->hub, base->rank);
    free(base);
}

tn_engine *tn__local_new(const tn_engine_options *o) {
    if (o->ranks > TN__VIEW_RANKS) {
        return tn__fail_null(TN_EVALUE, NULL, "%d threads as ranks (at most %d)", o->ranks,
                             TN__VIEW_RANKS);
    }
    local *e = tn__calloc_for(1, sizeof(*e), NULL);
    if (!e) { return NULL; }
    e->base = (tn_engine){.size = sizeof(tn_engine),
                          .version = TN_ENGINE_VERSION,
                          .devices = 1u << TN_CPU,
                          .name = "local",
                          .rank = o->rank,
                          .ranks = o->ranks,
                          .run = local_run,
                          .abort = local_stop,
                          .check = local_check,
                          .destroy = local_destroy};
    e->hub = tn__hub_join(o);
    if (!e->hub) {
        free(e);
        return NULL;
    }
    return &e->base;
}
