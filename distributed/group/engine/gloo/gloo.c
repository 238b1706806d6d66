/* The engine "gloo": joining, waiting, failing, leaving. gloo.h says how its files fit together.
 *
 * Joining: every rank listens once for each peer, tells the store where, connects to all, and
 * touches all. Then the store is needed only to say goodbye. The first failure is kept in `dead`
 * and `reason`; the connections are closed, so that peers notice, and nothing more is run. An
 * operation that another thread aborts is woken in its wait.
 */
#include "distributed/group/engine/gloo/gloo.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/plugin.h"
#include "distributed/group/group.h"
#include "distributed/store/ports.h"
#include "distributed/store/store.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* How long the store may take to record a goodbye, or to look one up. */
static const double goodbye_seconds = 1;

/* ---- Failing --------------------------------------------------------------------------------- */

/* The first reason stays. Returns false, for callers that fail. */
TN_PRINTF(3, 4) static bool gloo_fail(tn__gloo *e, tn_status status, const char *format, ...) {
    char text[sizeof(e->reason)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&e->lock);
    if (e->dead == TN_OK) {
        e->dead = status;
        memcpy(e->reason, text, sizeof(text));
    }
    pthread_mutex_unlock(&e->lock);
    return false;
}

static void goodbye_key(char *key, size_t size, int rank) {
    snprintf(key, size, "gloo/left/%d", rank);
}

/* Whether peer said goodbye; `known`: whether the store could tell. */
static bool has_left(tn__gloo *e, int peer, bool *known) {
    char key[64];
    goodbye_key(key, sizeof(key), peer);
    tn_store_call c = {.kind = TN_STORE_CHECK, .key = key, .deadline = tn__now() + goodbye_seconds};
    *known = e->store->run(e->store, &c) == TN_OK;
    return *known && c.number;
}

/* The connection to peer is lost: because it has left, or because of something worse. */
static bool fail_lost(tn__gloo *e, int peer, const char *why) {
    bool known;
    if (has_left(e, peer, &known)) {
        return gloo_fail(e, TN_EPEER, "rank %d has left the group", peer);
    }
    return gloo_fail(e, TN_EPEER, "the connection to rank %d is lost (%s)", peer, why);
}

/* ---- Messages -------------------------------------------------------------------------------- */

/* Notes that a message has been started, or fails. */
static bool note_message(tn__gloo *e, tn__gloo_batch *b, int peer, bool is_send, bool fine,
                         const char *why) {
    b->started[b->n] = (tn__started){peer, is_send};
    b->n += fine;
    return fine || fail_lost(e, peer, why);
}

bool tn__gloo_send(tn__gloo *e, tn__gloo_batch *b, int peer, uint64_t tag, const void *data,
                   int64_t bytes) {
    char why[TN_ENGINE_WHY] = "";
    return bytes <= 0 ||
           note_message(e, b, peer, true,
                        e->api->send(e->wire, peer, tag, data, (size_t)bytes, why), why);
}

bool tn__gloo_receive(tn__gloo *e, tn__gloo_batch *b, int peer, uint64_t tag, void *data,
                      int64_t bytes) {
    char why[TN_ENGINE_WHY] = "";
    return bytes <= 0 ||
           note_message(e, b, peer, false,
                        e->api->receive(e->wire, peer, tag, data, (size_t)bytes, why), why);
}

bool tn__gloo_touch(tn__gloo *e, tn__gloo_batch *b, int peer, uint64_t tag) {
    char why[TN_ENGINE_WHY] = "";
    return note_message(e, b, peer, false, e->api->receive(e->wire, peer, tag, NULL, 0, why),
                        why) &&
           note_message(e, b, peer, true, e->api->send(e->wire, peer, tag, NULL, 0, why), why);
}

/* Waits for one message, so that abort can find it. */
static bool wait_for(tn__gloo *e, tn__started m) {
    char why[TN_ENGINE_WHY] = "";
    pthread_mutex_lock(&e->lock);
    bool dead = e->dead != TN_OK;
    e->waiting = dead ? -1 : m.peer;
    pthread_mutex_unlock(&e->lock);
    if (dead) { return false; }
    tn__arrival arrival = e->api->wait(e->wire, m.peer, m.is_send, e->deadline - tn__now(), why);
    pthread_mutex_lock(&e->lock);
    e->waiting = -1;
    pthread_mutex_unlock(&e->lock);
    switch (arrival) {
    case TN__DONE:
        return true;
    case TN__LATE:
        return gloo_fail(e, TN_EPEER, "rank %d did not answer within %.3g seconds", m.peer,
                         e->deadline - e->begun);
    case TN__LOST:
        return fail_lost(e, m.peer, why);
    case TN__WOKEN:
        break; /* by abort, which has set the reason */
    }
    return false;
}

bool tn__gloo_finish(tn__gloo *e, tn__gloo_batch *b) {
    bool fine = true;
    for (int i = 0; i < b->n && fine; i++) {
        fine = wait_for(e, b->started[i]);
    }
    b->n = 0;
    return fine;
}

void *tn__gloo_scratch(tn__gloo *e, int64_t bytes) {
    if ((size_t)bytes > e->scratch_bytes) {
        free(e->scratch);
        e->scratch = tn__malloc((size_t)bytes);
        e->scratch_bytes = e->scratch ? (size_t)bytes : 0;
    }
    if (!e->scratch) {
        gloo_fail(e, TN_ENOMEM, "out of memory (%lld bytes besides the buffers)", (long long)bytes);
    }
    return e->scratch;
}

/* ---- Signals ---------------------------------------------------------------------------------- *
 *
 * gloo writes to connections that may be closed, which raises SIGPIPE in the writing thread. */

static void hold_pipe_signal(sigset_t *before) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, before);
}

/* Consumes a SIGPIPE that arrived in between, unless it was blocked before. */
static void release_pipe_signal(const sigset_t *before) {
    if (!sigismember(before, SIGPIPE)) {
        sigset_t pipe;
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        sigtimedwait(&pipe, NULL, &(struct timespec){0});
        pthread_sigmask(SIG_SETMASK, before, NULL);
    }
}

/* ---- The table of an engine ------------------------------------------------------------------ */

/* Runs `operation` as the engine's one running operation, until `deadline`. */
static tn_status gloo_attempt(tn__gloo *e, bool (*operation)(tn__gloo *e, const void *user),
                              const void *user, double deadline) {
    sigset_t before;
    pthread_mutex_lock(&e->lock);
    e->running = e->dead == TN_OK;
    bool alive = e->running;
    pthread_mutex_unlock(&e->lock);
    if (alive) {
        e->begun = tn__now();
        e->deadline = deadline;
        hold_pipe_signal(&before);
        operation(e, user);
    }
    pthread_mutex_lock(&e->lock);
    e->running = false;
    tn_status status = tn__raise(e->dead, NULL, "%s", e->reason);
    pthread_mutex_unlock(&e->lock);
    if (alive && status != TN_OK) { e->api->close(e->wire); }
    if (alive) { release_pipe_signal(&before); }
    return status;
}

static bool run_transfer(tn__gloo *e, const void *user) {
    return tn__gloo_transfer(e, user);
}

static tn_status gloo_run(tn_engine *base, const tn_transfer *t) {
    return gloo_attempt((tn__gloo *)base, run_transfer, t, t->deadline);
}

/* A running operation closes the connections itself when it wakes. */
static void gloo_stop(tn_engine *base, const char *reason) {
    tn__gloo *e = (tn__gloo *)base;
    gloo_fail(e, TN_EPEER, "%s", reason);
    pthread_mutex_lock(&e->lock);
    bool running = e->running;
    if (e->waiting >= 0) { e->api->wake(e->wire, e->waiting); }
    pthread_mutex_unlock(&e->lock);
    if (!running) { e->api->close(e->wire); }
}

/* A rank that leaves says goodbye before its connections end; if the store cannot tell, the rank
 * may have left. */
static void check_peer(tn__gloo *e, int peer, bool all) {
    char reason[TN_ENGINE_WHY] = "";
    bool known = false;
    if (e->api->lost(e->wire, peer, reason)) {
        bool left = has_left(e, peer, &known);
        if (all || (known && !left)) { fail_lost(e, peer, reason); }
    }
}

static tn_status gloo_check(tn_engine *base, bool all) {
    tn__gloo *e = (tn__gloo *)base;
    tn_status status = TN_OK;
    for (int peer = 0; peer < base->ranks && status == TN_OK; peer++) {
        if (peer != base->rank) { check_peer(e, peer, all); }
        pthread_mutex_lock(&e->lock);
        status = tn__raise(e->dead, NULL, "%s", e->reason);
        pthread_mutex_unlock(&e->lock);
    }
    return status;
}

static void say_goodbye(tn__gloo *e) {
    char key[64];
    goodbye_key(key, sizeof(key), e->base.rank);
    tn__store_put(e->store, key, NULL, 0, tn__now() + goodbye_seconds, NULL);
}

static void gloo_destroy(tn_engine *base) {
    tn__gloo *e = (tn__gloo *)base;
    if (e->wire) {
        if (e->dead == TN_OK) { say_goodbye(e); }
        e->api->destroy(e->wire);
    }
    tn_store_free(e->store);
    for (int i = 0; i < TN__BATCHES; i++) {
        free(e->batches[i].started);
    }
    free(e->sent);
    free(e->received);
    free(e->scratch);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* ---- Joining --------------------------------------------------------------------------------- */

static const tn__gloo_api *gloo_load(void) {
    char reason[TN_ENGINE_WHY - 64];
    tn__gloo_entry *entry;
    *(void **)&entry = tn__plugin_symbol("gloo", TN__GLOO_SYMBOL, reason, sizeof(reason));
    if (!entry) {
        return tn__fail_null(TN_EUNSUPPORTED, NULL, "the gloo plugin is not available: %s", reason);
    }
    const tn__gloo_api *api = entry();
    if (api->size != sizeof(*api) || api->version != TN__GLOO_VERSION) {
        return tn__fail_null(
            TN_EUNSUPPORTED, NULL,
            "libtern_gloo.so is another build (version %u, %zu bytes; this is version %d, "
            "%zu bytes)",
            api->version, api->size, TN__GLOO_VERSION, sizeof(*api));
    }
    return api;
}

static bool make_batches(tn__gloo *e) {
    size_t ranks = (size_t)e->base.ranks;
    e->sent = tn__calloc(ranks, sizeof(uint64_t));
    e->received = tn__calloc(ranks, sizeof(uint64_t));
    bool fine = e->sent && e->received;
    for (int i = 0; i < TN__BATCHES; i++) {
        e->batches[i].started = tn__calloc(2 * ranks, sizeof(tn__started));
        fine = fine && e->batches[i].started;
    }
    return fine;
}

static tn__gloo *engine_alloc(const tn__gloo_api *api, const tn_engine_options *o) {
    tn__gloo *e = tn__calloc(1, sizeof(*e));
    if (!e) { return NULL; }
    e->base = (tn_engine){.size = sizeof(tn_engine),
                          .version = TN_ENGINE_VERSION,
                          .devices = 1u << TN_CPU,
                          .name = "gloo",
                          .rank = o->rank,
                          .ranks = o->ranks,
                          .vague = true,
                          .run = gloo_run,
                          .abort = gloo_stop,
                          .check = gloo_check,
                          .destroy = gloo_destroy};
    e->api = api;
    e->waiting = -1;
    e->store = tn__store_keep(o->store);
    pthread_mutex_init(&e->lock, NULL);
    if (!make_batches(e)) {
        gloo_destroy(&e->base);
        return NULL;
    }
    return e;
}

/* gloo's thread inherits the signals that are blocked here: all of them. */
static tn__wire *open_wire(tn__gloo *e, const tn_engine_options *o) {
    char address[TN__ADDRESS], why[TN_ENGINE_WHY];
    tn__ports open;
    if (tn__ports_find(&open, NULL) != TN_OK || !tn__gloo_address(o, address)) { return NULL; }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    tn__wire *w = e->api->open(address, open.first, open.last, o->rank, o->ranks,
                               o->deadline - tn__now(), why);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!w) { tn__raise(TN_EPEER, NULL, "%s", why); }
    return w;
}

/* This rank's endpoints for all peers, as one store value of ranks * `size` bytes. NULL after
 * raising. */
static char *own_endpoints(tn__gloo *e, size_t *size) {
    int ranks = e->base.ranks;
    char *all = tn__calloc_for((size_t)ranks, TN__ENDPOINT, NULL);
    for (int peer = 0; all && peer < ranks; peer++) {
        if (peer != e->base.rank) {
            *size = e->api->endpoint(e->wire, peer, all + (size_t)peer * TN__ENDPOINT);
        }
    }
    return all;
}

typedef struct joining {
    const tn_engine_options *options;
    const tn_store_value *endpoints; /* [ranks] */
    size_t endpoint_bytes;
} joining;

/* Connects to all peers and touches each: any later failure belongs to an operation. */
static bool connect_all(tn__gloo *e, const void *user) {
    const joining *j = user;
    int rank = e->base.rank, ranks = e->base.ranks;
    for (int peer = 0; peer < ranks; peer++) {
        char why[TN_ENGINE_WHY] = "";
        const tn_store_value *theirs = &j->endpoints[peer];
        if (peer == rank) { continue; }
        if (tn__gloo_refused(theirs, peer)) {
            return gloo_fail(e, TN_EPEER, "%s", tn__error_why());
        }
        if (theirs->bytes != (size_t)ranks * TN__ENDPOINT) {
            return gloo_fail(e, TN_EMISMATCH, "rank %d gave %zu bytes of addresses, not %zu", peer,
                             theirs->bytes, (size_t)ranks * TN__ENDPOINT);
        }
        const char *endpoint = (const char *)theirs->data + (size_t)rank * TN__ENDPOINT;
        if (!e->api->connect(e->wire, peer, endpoint, j->endpoint_bytes, why)) {
            return gloo_fail(e, TN_EPEER, "cannot connect to rank %d: %s", peer, why);
        }
    }
    return tn__gloo_transfer(e, &(tn_transfer){.kind = TN_BARRIER});
}

/* The others wait for this rank: instead of its address they get the pending error, why it has
 * none. */
static void tell_failure(const tn_engine_options *o) {
    static const char *const awaited[] = {"gloo/host", "gloo/at"};
    for (int i = 0; i < 2; i++) {
        char key[32], text[TN_ENGINE_WHY + 2];
        snprintf(text, sizeof(text), ": %s", tn__error_why());
        snprintf(key, sizeof(key), "%s/%d", awaited[i], o->rank);
        tn__store_put(o->store, key, text, strlen(text), o->deadline, NULL);
    }
}

static bool gloo_join(tn__gloo *e, const tn_engine_options *o) {
    joining j = {.options = o};
    tn_store_value *values = tn__calloc_for((size_t)o->ranks, sizeof(*values), NULL);
    e->wire = values ? open_wire(e, o) : NULL;
    char *mine = e->wire ? own_endpoints(e, &j.endpoint_bytes) : NULL;
    if (!mine) { tell_failure(o); }
    bool fine = mine && tn__gloo_meet(o, "gloo/at", mine, (size_t)o->ranks * TN__ENDPOINT, values);
    if (fine) {
        j.endpoints = values;
        fine = gloo_attempt(e, connect_all, &j, o->deadline) == TN_OK;
    }
    tn__gloo_forget(values, o->ranks);
    free(values);
    free(mine);
    return fine;
}

tn_engine *tn__gloo_new(const tn_engine_options *o) {
    const tn__gloo_api *api = gloo_load();
    tn__gloo *e = api ? engine_alloc(api, o) : NULL;
    if (api && !e) { tn__raise(TN_ENOMEM, NULL, "out of memory for %d ranks", o->ranks); }
    if (e && !gloo_join(e, o)) {
        e->dead = TN_EPEER; /* no peer knows it yet: no goodbye */
        gloo_destroy(&e->base);
        return NULL;
    }
    return e ? &e->base : NULL;
}
