/* The engine "local": ranks are threads of one process. The one to read first.
 *
 * All ranks share a hub. A collective is: arrive, and say where my buffers are; when all are there,
 * do my share of the work, reading and writing the buffers of the others directly; leave when all
 * have done theirs. Rank r's share of a reduction is the r-th slice of the elements: it reduces
 * that slice in the order of the ranks and writes the result to whoever wants it. So the bits never
 * depend on timing, and a buffer may be both in and out.
 */
#include "core/memory.h"
#include "distributed/group/group.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MOST_RANKS = 256 };

/* What one rank waits with. */
typedef struct seat {
    bool here, left;
    tn_transfer t;     /* while here */
    uint64_t finished; /* operations done */
} seat;

typedef struct parcel {
    struct parcel *next;
    int from, to;
    tn_dtype dtype;
    int64_t count;
    char data[];
} parcel;

typedef struct hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ranks, refs;
    int arrived, done; /* of the collective under way */
    uint64_t round;    /* collectives completed */
    tn_status dead;    /* TN_OK, or why nothing works any more */
    char reason[TN_ENGINE_WHY];
    parcel *parcels; /* sent and not yet received, oldest first */
    seat seats[];
} hub;

typedef struct local {
    tn_engine base;
    hub *hub;
} local;

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Under the lock. */
static tn_status hub_die(hub *h, tn_status status, const char *reason) {
    if (h->dead == TN_OK) {
        h->dead = status;
        snprintf(h->reason, sizeof(h->reason), "%s", reason);
        pthread_cond_broadcast(&h->changed);
    }
    return h->dead;
}

/* What rank r is at, appended to text. */
static size_t tell_seat(const hub *h, int r, char *text, size_t used, size_t room) {
    char what[128];
    const seat *s = &h->seats[r];
    if (used >= room) {
        return used;
    }
    if (s->here) {
        tn__transfer_text(&s->t, what, sizeof(what));
        return used +
               (size_t)snprintf(text + used, room - used, " rank %d (which is in %s)", r, what);
    }
    return used + (size_t)snprintf(text + used, room - used,
                                   " rank %d (which has done %llu operations)", r,
                                   (unsigned long long)s->finished);
}

/* Who keeps rank `me` waiting in t. */
static void name_missing(const hub *h, int me, const tn_transfer *t, char *text, size_t room) {
    size_t used = (size_t)snprintf(text, room, "timed out waiting for");
    if (t->kind == TN_RECV) {
        tell_seat(h, t->root, text, used, room);
        return;
    }
    for (int r = 0; r < h->ranks; r++) {
        if (r != me && !h->seats[r].here) {
            used = tell_seat(h, r, text, used, room);
        }
    }
}

/* Under the lock: waits for a change. Call it in a loop around the condition: the deadline is
 * looked at before the wait, so that what came with the last moment is seen. */
static tn_status wait_change(hub *h, int me, const tn_transfer *t) {
    if (h->dead == TN_OK && tn__now() >= t->deadline) {
        char text[TN_ENGINE_WHY];
        name_missing(h, me, t, text, sizeof(text));
        return hub_die(h, TN_EPEER, text);
    }
    if (h->dead == TN_OK) {
        double seconds = t->deadline;
        struct timespec until = {.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
        pthread_cond_timedwait(&h->changed, &h->lock, &until);
    }
    return h->dead;
}

static tn_status check_left(hub *h) {
    for (int r = 0; r < h->ranks; r++) {
        if (h->seats[r].left) {
            char text[TN_ENGINE_WHY];
            snprintf(text, sizeof(text), "rank %d has left the group after %llu operations", r,
                     (unsigned long long)h->seats[r].finished);
            return hub_die(h, TN_EPEER, text);
        }
    }
    return TN_OK;
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static bool same_transfer(const tn_transfer *a, const tn_transfer *b) {
    return a->kind == b->kind && a->count == b->count && a->root == b->root &&
           (a->kind == TN_BARRIER || a->dtype == b->dtype) && a->reduce == b->reduce;
}

/* Under the lock: takes my seat, and waits until all ranks have theirs, doing the same. Once all
 * are there the collective takes place, whatever happens meanwhile: nobody's buffers go away under
 * it. */
static tn_status hub_arrive(local *e, const tn_transfer *t) {
    hub *h = e->hub;
    seat *mine = &h->seats[e->base.rank];
    if (h->dead != TN_OK) {
        return h->dead;
    }
    mine->here = true;
    mine->t = *t;
    for (int r = 0; r < h->ranks; r++) {
        if (h->seats[r].here && !same_transfer(&h->seats[r].t, t)) {
            char ours[128], theirs[128], text[TN_ENGINE_WHY];
            tn__transfer_text(t, ours, sizeof(ours));
            tn__transfer_text(&h->seats[r].t, theirs, sizeof(theirs));
            snprintf(text, sizeof(text), "rank %d is in %s, but rank %d is in %s", e->base.rank,
                     ours, r, theirs);
            return hub_die(h, TN_EMISMATCH, text);
        }
    }
    uint64_t round = h->round;
    if (++h->arrived == h->ranks) {
        h->round++;
        pthread_cond_broadcast(&h->changed);
    }
    tn_status status = TN_OK;
    while (status == TN_OK && h->round == round) {
        status = check_left(h);
        if (status == TN_OK) {
            status = wait_change(h, e->base.rank, t);
        }
    }
    return h->round != round ? TN_OK : status;
}

/* Under the lock: gives my seat up when all have done their share, which takes no waiting. */
static void hub_depart(local *e) {
    hub *h = e->hub;
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

/* Reduces n elements, `offset` into each rank's in, into out. */
static void reduce_slice(const hub *h, const tn_transfer *t, int64_t offset, void *out, int64_t n) {
    const void *in[MOST_RANKS];
    int64_t size = (int64_t)tn_dtype_size(t->dtype);
    for (int r = 0; r < h->ranks; r++) {
        in[r] = (const char *)h->seats[r].t.in + offset * size;
    }
    tn__reduce_all(t->reduce, t->dtype, out, in, h->ranks, n);
}

static void move_bytes(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && to != from) {
        memmove(to, from, (size_t)bytes);
    }
}

/* Rank `me`'s share, while everybody's buffers lie open. */
static void hub_share(const hub *h, int me, const tn_transfer *t) {
    int64_t bytes = t->count * (int64_t)tn_dtype_size(t->dtype);
    int64_t begin = t->count * me / h->ranks, end = t->count * (me + 1) / h->ranks;
    int64_t skip = begin * (int64_t)tn_dtype_size(t->dtype);
    int64_t length = (end - begin) * (int64_t)tn_dtype_size(t->dtype);
    const seat *root = &h->seats[t->root];
    char *out = t->out;
    switch (t->kind) {
    case TN_ALL_REDUCE:
        if (begin < end) {
            reduce_slice(h, t, begin, out + skip, end - begin);
            for (int r = 0; r < h->ranks; r++) {
                move_bytes((char *)h->seats[r].t.out + skip, out + skip, length);
            }
        }
        break;
    case TN_REDUCE_TO_ROOT:
        if (begin < end) {
            reduce_slice(h, t, begin, (char *)root->t.out + skip, end - begin);
        }
        break;
    case TN_REDUCE_SCATTER:
        if (t->count > 0) {
            reduce_slice(h, t, me * t->count, out, t->count);
        }
        break;
    case TN_ALL_GATHER:
        for (int r = 0; r < h->ranks; r++) {
            move_bytes(out + r * bytes, h->seats[r].t.in, bytes);
        }
        break;
    case TN_ALL_TO_ALL:
        for (int r = 0; r < h->ranks; r++) {
            move_bytes(out + r * bytes, (const char *)h->seats[r].t.in + me * bytes, bytes);
        }
        break;
    case TN_BROADCAST:
        move_bytes(out, root->t.in, bytes);
        break;
    case TN_GATHER:
        move_bytes((char *)root->t.out + me * bytes, t->in, bytes);
        break;
    case TN_SCATTER:
        move_bytes(out, (const char *)root->t.in + me * bytes, bytes);
        break;
    default:
        break;
    }
}

static tn_status local_collective(local *e, const tn_transfer *t) {
    hub *h = e->hub;
    tn_transfer mine = *t;
    void *copy = NULL;
    if (t->kind == TN_ALL_TO_ALL && t->in == t->out && t->count > 0) {
        /* The only one in which a rank's out is read by another as its in. */
        size_t bytes = (size_t)(t->count * h->ranks) * tn_dtype_size(t->dtype);
        copy = tn__malloc(bytes);
        if (!copy) {
            return TN_ENOMEM;
        }
        mine.in = memcpy(copy, t->in, bytes);
    }
    pthread_mutex_lock(&h->lock);
    tn_status status = hub_arrive(e, &mine);
    if (status == TN_OK) {
        pthread_mutex_unlock(&h->lock);
        hub_share(h, e->base.rank, &mine);
        pthread_mutex_lock(&h->lock);
        hub_depart(e);
    }
    pthread_mutex_unlock(&h->lock);
    free(copy);
    return status;
}

/* ---- Send and receive ------------------------------------------------------------------------ */

static tn_status send_parcel(local *e, const tn_transfer *t) {
    hub *h = e->hub;
    size_t bytes = (size_t)t->count * tn_dtype_size(t->dtype);
    parcel *p = tn__malloc(sizeof(*p) + bytes);
    if (!p) {
        return TN_ENOMEM;
    }
    *p = (parcel){.from = e->base.rank, .to = t->root, .dtype = t->dtype, .count = t->count};
    move_bytes(p->data, t->in, (int64_t)bytes);
    pthread_mutex_lock(&h->lock);
    parcel **last = &h->parcels;
    while (*last) {
        last = &(*last)->next;
    }
    *last = p;
    h->seats[e->base.rank].finished++;
    pthread_cond_broadcast(&h->changed);
    tn_status status = h->dead;
    pthread_mutex_unlock(&h->lock);
    return status;
}

static parcel *find_parcel(hub *h, int from, int to) {
    for (parcel **at = &h->parcels; *at; at = &(*at)->next) {
        if ((*at)->from == from && (*at)->to == to) {
            parcel *p = *at;
            *at = p->next;
            return p;
        }
    }
    return NULL;
}

static tn_status receive_parcel(local *e, const tn_transfer *t) {
    hub *h = e->hub;
    pthread_mutex_lock(&h->lock);
    parcel *p = NULL;
    tn_status status = h->dead;
    while (status == TN_OK && !(p = find_parcel(h, t->root, e->base.rank))) {
        status = h->seats[t->root].left ? check_left(h) : wait_change(h, e->base.rank, t);
    }
    if (p && (p->dtype != t->dtype || p->count != t->count)) {
        char text[TN_ENGINE_WHY];
        snprintf(text, sizeof(text), "rank %d sends %s [%lld], but rank %d receives %s [%lld]",
                 t->root, tn_dtype_name(p->dtype), (long long)p->count, e->base.rank,
                 tn_dtype_name(t->dtype), (long long)t->count);
        status = hub_die(h, TN_EMISMATCH, text);
    } else if (p) {
        move_bytes(t->out, p->data, t->count * (int64_t)tn_dtype_size(t->dtype));
        h->seats[e->base.rank].finished++;
    }
    pthread_mutex_unlock(&h->lock);
    free(p);
    return status;
}

/* ---- The engine ------------------------------------------------------------------------------ */

static tn_status local_run(tn_engine *base, const tn_transfer *t, char *why) {
    local *e = (local *)base;
    tn_status status = t->kind == TN_SEND   ? send_parcel(e, t)
                       : t->kind == TN_RECV ? receive_parcel(e, t)
                                            : local_collective(e, t);
    if (status != TN_OK) {
        pthread_mutex_lock(&e->hub->lock);
        if (e->hub->dead == TN_OK) { /* no memory: the peers wait for this rank */
            hub_die(e->hub, TN_EPEER, "a rank is out of memory");
            snprintf(why, TN_ENGINE_WHY, "out of memory");
        } else {
            snprintf(why, TN_ENGINE_WHY, "%s", e->hub->reason);
        }
        pthread_mutex_unlock(&e->hub->lock);
    }
    return status;
}

static void local_stop(tn_engine *base, const char *reason) {
    hub *h = ((local *)base)->hub;
    pthread_mutex_lock(&h->lock);
    hub_die(h, TN_EPEER, reason);
    pthread_mutex_unlock(&h->lock);
}

static void hub_free(hub *h) {
    while (h->parcels) {
        parcel *p = h->parcels;
        h->parcels = p->next;
        free(p);
    }
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static tn_status local_check(tn_engine *base, bool all, char *why) {
    hub *h = ((local *)base)->hub;
    pthread_mutex_lock(&h->lock);
    tn_status status = h->dead == TN_OK && all ? check_left(h) : h->dead;
    snprintf(why, TN_ENGINE_WHY, "%s", h->reason);
    pthread_mutex_unlock(&h->lock);
    return status;
}

static void local_destroy(tn_engine *base) {
    hub *h = ((local *)base)->hub;
    pthread_mutex_lock(&h->lock);
    h->seats[base->rank].left = true;
    pthread_cond_broadcast(&h->changed);
    bool last = --h->refs == 0;
    pthread_mutex_unlock(&h->lock);
    if (last) {
        hub_free(h);
    }
    free(base);
}

static hub *hub_new(int ranks) {
    hub *h = tn__calloc(1, sizeof(*h) + (size_t)ranks * sizeof(seat));
    if (h) {
        h->ranks = h->refs = ranks;
        pthread_mutex_init(&h->lock, NULL);
        pthread_condattr_t clock;
        pthread_condattr_init(&clock);
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        pthread_cond_init(&h->changed, &clock);
        pthread_condattr_destroy(&clock);
    }
    return h;
}

/* Rank 0 makes the hub; the others find its address in the store, which is in this process's
 * memory. */
static tn_status share_hub(const tn_engine_options *o, hub **h, char *why) {
    if (o->rank == 0) {
        *h = hub_new(o->ranks);
        if (!*h) {
            snprintf(why, TN_ENGINE_WHY, "out of memory");
            return TN_ENOMEM;
        }
        tn_status status = o->store->set(o->store, "hub", h, sizeof(*h), o->deadline, why);
        if (status != TN_OK) {
            hub_free(*h);
        }
        return status;
    }
    tn_store_value value;
    tn_status status = o->store->get(o->store, "hub", &value, o->deadline, why);
    if (status == TN_OK && value.bytes == sizeof(*h)) {
        memcpy(h, value.data, sizeof(*h));
        free(value.data);
    }
    return status;
}

tn_engine *tn__local_new(const tn_engine_options *o, char *why) {
    if (o->ranks > MOST_RANKS) {
        snprintf(why, TN_ENGINE_WHY, "%d threads as ranks (at most %d)", o->ranks, MOST_RANKS);
        return NULL;
    }
    local *e = tn__calloc(1, sizeof(*e));
    if (!e) {
        snprintf(why, TN_ENGINE_WHY, "out of memory");
        return NULL;
    }
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
    if (share_hub(o, &e->hub, why) != TN_OK) {
        free(e);
        return NULL;
    }
    return &e->base;
}
