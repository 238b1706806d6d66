#include "distributed/rpc/rpc.h"

#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"

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

bool tn__rpc_await(tn_rpc *r, double deadline) {
    struct timespec until = tn__timespec(deadline);
    return pthread_cond_timedwait(&r->changed, &r->lock, &until) == 0;
}

void tn__rpc_unlock(tn_rpc *r) {
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

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

_Thread_local const tn__serving *tn__served;

bool tn__rpc_inside(const tn_rpc *r) {
    return tn__served && tn__served->rpc == r;
}

int tn_rpc_caller(void) {
    return tn__served ? tn__served->caller : -1;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static bool options_sound(const tn_rpc_options *o) {
    const char *wrong = TN__BEYOND({"threads", o->threads, 1, THREADS_MOST},
                                   {"threads_most", o->threads_most, o->threads, THREADS_MOST},
                                   {"message_limit", o->message_limit, LIMIT_LEAST, 0},
                                   {"backlog_limit", o->backlog_limit, LIMIT_LEAST, 0});
    if (!(o->timeout > 0 && o->timeout <= TN__TIMEOUT_MOST)) {
        tn__raise(TN_EVALUE, "rpc_new", "the time-out is %g seconds (above 0, at most %g)",
                  o->timeout, TN__TIMEOUT_MOST);
    } else if (wrong) {
        tn__raise(TN_EVALUE, "rpc_new", "%s", wrong);
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
