/* The hub: meeting, failing, and waiting with a deadline; a time-out names the missing ranks. */
#include "distributed/group/engine/local_hub.h"

#include "core/error.h"
#include "core/memory.h"
#include "distributed/store/store.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Joining and leaving --------------------------------------------------------------------- */

static tn__hub *hub_new(int ranks) {
    tn__hub *h = tn__calloc_for(1, sizeof(*h) + (size_t)ranks * sizeof(tn__seat), NULL);
    if (h) {
        h->ranks = h->refs = ranks;
        pthread_mutex_init(&h->lock, NULL);
        tn__condition_init(&h->changed);
    }
    return h;
}

static void hub_free(tn__hub *h) {
    while (h->parcels) {
        tn__parcel *p = h->parcels;
        h->parcels = p->next;
        free(p);
    }
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static tn__hub *hub_announce(const tn_engine_options *o) {
    tn__hub *h = hub_new(o->ranks);
    if (!h) { return NULL; }
    char why[TN_STORE_WHY];
    tn_status status =
        tn__store_put(o->store, "hub", (const void *)&h, sizeof(h), o->deadline, why);
    if (status == TN_OK) { return h; }
    tn__raise(status, NULL, "%s", why);
    hub_free(h);
    return NULL;
}

tn__hub *tn__hub_join(const tn_engine_options *o) {
    if (o->rank == 0) { return hub_announce(o); }
    tn__hub *h = NULL;
    tn_store_call c = {.kind = TN_STORE_GET, .key = "hub", .deadline = o->deadline};
    tn_status status = o->store->run(o->store, &c);
    if (status != TN_OK) {
        tn__raise(status, NULL, "%s", c.why);
    } else if (c.value.bytes == sizeof(h)) {
        memcpy((void *)&h, c.value.data, sizeof(h));
    } else {
        tn__raise(TN_EPEER, NULL, "the store's \"hub\" has %zu bytes", c.value.bytes);
    }
    free(c.value.data);
    return h;
}

void tn__hub_leave(tn__hub *h, int rank) {
    pthread_mutex_lock(&h->lock);
    h->seats[rank].left = true;
    pthread_cond_broadcast(&h->changed);
    bool last = --h->refs == 0;
    pthread_mutex_unlock(&h->lock);
    if (last) { hub_free(h); }
}

/* ---- Failing and waiting --------------------------------------------------------------------- */

tn_status tn__hub_die(tn__hub *h, tn_status status, const char *format, ...) {
    if (h->dead == TN_OK) {
        h->dead = status;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(h->reason, sizeof(h->reason), format, arguments);
        va_end(arguments);
        pthread_cond_broadcast(&h->changed);
    }
    return h->dead;
}

/* What rank r is doing, appended to text. */
static size_t tell_seat(const tn__hub *h, int r, char *text, size_t used, size_t size) {
    char what[128];
    const tn__seat *s = &h->seats[r];
    if (used >= size) { return used; }
    if (s->here) {
        tn__transfer_text(&s->t, what, sizeof(what));
        return used +
               (size_t)snprintf(text + used, size - used, " rank %d (which is in %s)", r, what);
    }
    return used + (size_t)snprintf(text + used, size - used,
                                   " rank %d (which has done %llu operations)", r,
                                   (unsigned long long)s->finished);
}

/* Names the ranks that rank `me` waits for in t. */
static void name_missing(const tn__hub *h, int me, const tn_transfer *t, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "timed out waiting for");
    if (t->kind == TN_RECV) {
        tell_seat(h, t->root, text, used, size);
        return;
    }
    for (int r = 0; r < h->ranks; r++) {
        if (r != me && !h->seats[r].here) { used = tell_seat(h, r, text, used, size); }
    }
}

tn_status tn__hub_wait(tn__hub *h, int me, const tn_transfer *t) {
    if (h->dead == TN_OK && tn__now() >= t->deadline) {
        char text[TN_ENGINE_WHY];
        name_missing(h, me, t, text, sizeof(text));
        return tn__hub_die(h, TN_EPEER, "%s", text);
    }
    if (h->dead == TN_OK) {
        struct timespec until = tn__timespec(t->deadline);
        pthread_cond_timedwait(&h->changed, &h->lock, &until);
    }
    return h->dead;
}

tn_status tn__hub_check(tn__hub *h) {
    for (int r = 0; r < h->ranks; r++) {
        if (h->seats[r].left) {
            return tn__hub_die(h, TN_EPEER, "rank %d has left the group after %llu operations", r,
                               (unsigned long long)h->seats[r].finished);
        }
    }
    return TN_OK;
}

/* ---- Parcels --------------------------------------------------------------------------------- */

void tn__hub_send(tn__hub *h, tn__parcel *p) {
    tn__parcel **last = &h->parcels;
    while (*last) {
        last = &(*last)->next;
    }
    *last = p;
    pthread_cond_broadcast(&h->changed);
}

tn__parcel *tn__hub_take(tn__hub *h, int from, int to) {
    for (tn__parcel **at = &h->parcels; *at; at = &(*at)->next) {
        if ((*at)->from == from && (*at)->to == to) {
            tn__parcel *p = *at;
            *at = p->next;
            return p;
        }
    }
    return NULL;
}
