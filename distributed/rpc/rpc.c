#include "distributed/rpc/rpc.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "distributed/store/store.h"

#include <stdio.h>
#include <string.h>

enum { THREADS_MOST = 4096, LIMIT_LEAST = 4096 };

tn_rpc_options tn_rpc_defaults(void) {
    return (tn_rpc_options){.timeout = 60,
                            .threads = 16,
                            .threads_most = 256,
                            .message_limit = (int64_t)1 << 30,
                            .backlog_limit = (int64_t)1 << 30,
                            .from_defaults = true};
}

bool tn__rpc_usable(tn_rpc *r, const char *operation) {
    if (!tn__pending() && !r) { tn__raise(TN_EVALUE, operation, "the rpc is NULL"); }
    return r && !tn__pending() && !tn__refuse_inherited(r->process, operation, "the rpc");
}

/* ---- Frames that arrive ---------------------------------------------------------------------- */

void tn__rpc_receive(tn_rpc *r, int from, tn__rpc_frame *f) {
    switch (f->head.kind) {
    case TN__RPC_REPLY:
        tn__rpc_reply(r, from, f);
        return;
    case TN__RPC_FORGET:
        tn__rpc_forget_graph(r, from, f->head.number);
        free(f);
        return;
    case TN__RPC_END:
        pthread_mutex_lock(&r->lock);
        r->peers[from].ended = true;
        tn__rpc_unlock(r);
        free(f);
        return;
    default: /* a call of some kind */
        tn__rpc_serve(r, from, f);
    }
}

static void lose_all(tn_rpc *r, const char *why) {
    for (int i = 0; i < r->ranks; i++) {
        tn__rpc_lose(r, i, why);
    }
}

/* ---- Waiting --------------------------------------------------------------------------------- */

bool tn__rpc_await(tn_rpc *r, double deadline) {
    struct timespec until = tn__timespec(deadline);
    return pthread_cond_timedwait(&r->changed, &r->lock, &until) == 0;
}

void tn__rpc_unlock(tn_rpc *r) {
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Counting those who use it --------------------------------------------------------------- */

tn_rpc *tn__rpc_keep(tn_rpc *r) {
    __atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
    return r;
}

void tn__rpc_release(tn_rpc *r) {
    if (__atomic_fetch_sub(&r->refs, 1, __ATOMIC_ACQ_REL) > 1) { return; }
    for (int i = 0; r->peers && i < r->ranks; i++) {
        pthread_mutex_destroy(&r->peers[i].sending);
    }
    pthread_cond_destroy(&r->queued);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    for (tn__function *f = r->functions, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    free(r->threads);
    free(r->peers);
    tn_store_free(r->store);
    free(r);
}

/* ---- Making ---------------------------------------------------------------------------------- */

static bool options_sound(const tn_rpc_options *o) {
    static const char *const operation = "rpc_new";
    const char *wrong = TN__BEYOND({"threads", o->threads, 1, THREADS_MOST},
                                   {"threads_most", o->threads_most, o->threads, THREADS_MOST},
                                   {"message_limit", o->message_limit, LIMIT_LEAST, 0},
                                   {"backlog_limit", o->backlog_limit, LIMIT_LEAST, 0});
    if (!(o->timeout > 0 && o->timeout <= TN__TIMEOUT_MOST)) {
        tn__raise(TN_EVALUE, operation, "the time-out is %g seconds (above 0, at most %g)",
                  o->timeout, TN__TIMEOUT_MOST);
    } else if (wrong) {
        tn__raise(TN_EVALUE, operation, "%s", wrong);
    }
    return !tn__pending();
}

/* For g's ranks, with a part of its store. False after raising. */
static bool take_group(tn_rpc *r, tn_group *g) {
    char prefix[32];
    if (!g || !g->store) { return true; }
    snprintf(r->interface, sizeof(r->interface), "%s", g->interface);
    snprintf(prefix, sizeof(prefix), "rpc/%d", g->rpcs++);
    r->store = tn_prefix_store(g->store, prefix);
    return r->store != NULL;
}

static tn_rpc *make_rpc(tn_group *g, const tn_rpc_options *o) {
    tn_rpc *r = tn__calloc_for(1, sizeof(*r), "rpc_new");
    if (!r) { return NULL; }
    int rank = tn_group_rank(g), ranks = tn_group_size(g);
    *r = (tn_rpc){.refs = 1,
                  .process = tn__process(),
                  .options = *o,
                  .rank = rank,
                  .ranks = ranks,
                  .epoll = -1,
                  .wake = -1};
    pthread_mutex_init(&r->lock, NULL);
    tn__condition_init(&r->changed);
    tn__condition_init(&r->queued);
    r->threads = tn__calloc_for((size_t)o->threads_most, sizeof(*r->threads), "rpc_new");
    r->peers = tn__calloc_for((size_t)ranks, sizeof(*r->peers), "rpc_new");
    for (int i = 0; r->peers && i < ranks; i++) {
        r->peers[i].fd = -1;
        r->peers[i].end = &r->peers[i].futures;
        r->peers[i].reader.limit = (uint64_t)o->message_limit;
        pthread_mutex_init(&r->peers[i].sending, NULL);
    }
    if (!r->threads || !r->peers || !take_group(r, g)) {
        tn__rpc_release(r);
        return NULL;
    }
    return r;
}

tn_rpc *tn_rpc_new(tn_group *g, tn_rpc_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "rpc_new", "tn_rpc") ||
        !options_sound(&options) || (g && tn__group_refuse_inherited(g, "rpc_new"))) {
        return NULL;
    }
    if (tn_group_rank(g) < 0) {
        return tn__fail_null(TN_ESTATE, "rpc_new", "this rank is not a member of group %s",
                             tn_group_name(g));
    }
    return make_rpc(g, &options);
}

/* ---- Functions ------------------------------------------------------------------------------- */

const tn__function *tn__rpc_function(const tn_rpc *r, const char *name, size_t bytes) {
    const tn__function *f = r->functions;
    while (f && (strlen(f->name) != bytes || memcmp(f->name, name, bytes) != 0)) {
        f = f->next;
    }
    return f;
}

tn_status tn_rpc_register(tn_rpc *r, const char *name, tn_rpc_function f, void *user) {
    if (!tn__rpc_usable(r, "rpc_register")) { return tn_error(); }
    if (!f || !name || !*name || strlen(name) > TN__RPC_NAME) {
        return tn__raise(TN_EVALUE, "rpc_register",
                         "%s \"%.40s\" (a function, and a name of 1 to %d bytes)",
                         f ? "the name" : "no function for", name ? name : "(NULL)", TN__RPC_NAME);
    }
    size_t length = strlen(name);
    tn__function *entry = tn__calloc_for(1, sizeof(*entry) + length + 1, "rpc_register");
    if (!entry) { return tn_error(); }
    *entry = (tn__function){.f = f, .user = user};
    memcpy(entry->name, name, length + 1);
    pthread_mutex_lock(&r->lock);
    bool taken = tn__rpc_function(r, name, length) != NULL;
    if (!taken) {
        entry->next = r->functions;
        r->functions = entry;
    }
    pthread_mutex_unlock(&r->lock);
    if (!taken) { return TN_OK; }
    free(entry);
    return tn__raise(TN_ESTATE, "rpc_register", "\"%s\" is registered already", name);
}

/* ---- Starting -------------------------------------------------------------------------------- */

tn_status tn_rpc_start(tn_rpc *r) {
    if (!tn__rpc_usable(r, "rpc_start")) { return tn_error(); }
    if (r->started) { return tn__raise(TN_ESTATE, "rpc_start", "it was called before"); }
    bool joined = tn__rpc_start_serving(r) && (r->ranks == 1 || tn__rpc_join(r));
    /* functions that others call may call before this returns */
    __atomic_store_n(&r->started, true, __ATOMIC_RELEASE);
    if (!joined || !tn__rpc_connect(r)) {
        lose_all(r, "tn_rpc_start has failed");
        tn__rpc_disconnect(r);
    }
    return tn_error();
}

/* ---- Shutting down ---------------------------------------------------------------------------- *
 *
 * A rank that waits for no answer says END to all. A function runs because some rank waits for it,
 * or for a function that waits for it; so when all have said END, none that is waited for runs or
 * is on its way. A rank leaves when it has all others' END. */

/* Under the lock. */
static bool is_busy(const tn_rpc *r) {
    return r->calls.first || r->running || r->waiting;
}

/* Waits until nothing runs here and no call waits. False after raising. */
static bool settle_here(tn_rpc *r, double deadline, double timeout) {
    pthread_mutex_lock(&r->lock);
    while (is_busy(r) && tn__rpc_await(r, deadline)) {}
    bool busy = is_busy(r);
    pthread_mutex_unlock(&r->lock);
    if (busy) {
        tn__raise(TN_EPEER, "rpc_shutdown", "calls were still running after %.3g seconds", timeout);
    }
    return !busy;
}

/* To all ranks, this one too. False after raising. */
static bool say_end(tn_rpc *r) {
    for (int to = 0; to < r->ranks; to++) {
        tn__rpc_frame *f = tn__rpc_frame_new(&(tn__rpc_head){.kind = TN__RPC_END});
        if (!f) { return tn__fail(TN_ENOMEM, "rpc_shutdown", "no memory for a message"); }
        tn__rpc_send(r, to, f);
    }
    return true;
}

/* Under the lock: a rank that has not ended, if possible one that is gone; or -1. */
static int missing_rank(const tn_rpc *r) {
    int missing = -1;
    for (int i = 0; i < r->ranks; i++) {
        const tn__peer *p = &r->peers[i];
        if (!p->ended && p->gone) { return i; }
        missing = missing < 0 && !p->ended ? i : missing;
    }
    return missing;
}

/* False after raising. */
static bool await_ends(tn_rpc *r, double deadline, double timeout) {
    int missing;
    bool late = false;
    const char *why = NULL; /* others may have left because of the first that did */
    pthread_mutex_lock(&r->lock);
    while ((missing = missing_rank(r)) >= 0 && !r->peers[missing].gone && !late) {
        late = !tn__rpc_await(r, deadline);
    }
    if (missing >= 0 && r->peers[missing].gone) { why = r->first_lost->why; }
    pthread_mutex_unlock(&r->lock);
    if (why) {
        tn__raise(TN_EPEER, "rpc_shutdown", "%s", why);
    } else if (missing >= 0) {
        tn__raise(TN_EPEER, "rpc_shutdown", "rank %d has not ended within %.3g seconds", missing,
                  timeout);
    }
    return missing < 0;
}

tn_status tn_rpc_shutdown(tn_rpc *r, double timeout) {
    if (!tn__rpc_usable(r, "rpc_shutdown")) { return tn_error(); }
    if (!(timeout >= 0 && timeout <= TN__TIMEOUT_MOST)) {
        return tn__raise(TN_EVALUE, "rpc_shutdown", "a time-out of %g seconds (0 to %g)", timeout,
                         TN__TIMEOUT_MOST);
    }
    if (!r->started || tn__rpc_inside(r)) {
        return tn__raise(TN_ESTATE, "rpc_shutdown", "%s",
                         r->started ? "called inside a function that a rank called"
                                    : "tn_rpc_start was not called");
    }
    double deadline = tn__now() + (timeout > 0 ? timeout : TN__TIMEOUT_MOST);
    if (settle_here(r, deadline, timeout) && say_end(r) && await_ends(r, deadline, timeout) &&
        settle_here(r, deadline, timeout) && !tn__rpc_drain(r, deadline)) {
        tn__raise(TN_EPEER, "rpc_shutdown", "what it has sent was not taken in %.3g seconds",
                  timeout);
    }
    return tn_error();
}

void tn_rpc_free(tn_rpc *r) {
    if (!r || tn__inherited(r->process)) { return; }
    if (tn__rpc_inside(r)) {
        tn__raise(TN_ESTATE, "rpc_free", "called inside a function that a rank called");
        return;
    }
    lose_all(r, "tn_rpc_free was called on this side");
    tn__rpc_disconnect(r);
    tn__rpc_stop_serving(r);
    tn__rpc_release(r);
}
