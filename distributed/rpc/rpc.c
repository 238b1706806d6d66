/* Life: making an rpc, starting it, shutting it down, freeing it. */
#include "distributed/rpc/rpc.h"

#include "core/fork.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "distributed/store/store.h"

#include <math.h>
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
    if (!tn__pending() && !r) {
        tn__raise(TN_EVALUE, operation, "the rpc is NULL");
    }
    return r && !tn__pending() && !tn__refuse_inherited(r->process, operation, "the rpc");
}

/* ---- Counting those who use it --------------------------------------------------------------- */

tn_rpc *tn__rpc_keep(tn_rpc *r) {
    __atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
    return r;
}

void tn__rpc_release(tn_rpc *r) {
    if (__atomic_fetch_sub(&r->refs, 1, __ATOMIC_ACQ_REL) > 1) {
        return;
    }
    for (int i = 0; i < r->ranks; i++) {
        pthread_mutex_destroy(&r->peers[i].lock);
    }
    for (tn__function *f = r->functions, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    tn__stepped_free(r);
    tn__references_end(r);
    pthread_cond_destroy(&r->queued);
    pthread_cond_destroy(&r->quiet);
    pthread_cond_destroy(&r->grads_free);
    pthread_mutex_destroy(&r->lock);
    tn_store_free(r->store);
    free(r->threads);
    free(r->peers);
    free(r);
}

/* ---- Making ---------------------------------------------------------------------------------- */

static bool options_sound(const tn_rpc_options *o) {
    static const char *const operation = "rpc_new";
    const char *wrong = TN__BEYOND({"threads", o->threads, 1, THREADS_MOST},
                                   {"threads_most", o->threads_most, o->threads, THREADS_MOST});
    if (!(o->timeout > 0 && o->timeout <= TN__TIMEOUT_MOST)) {
        tn__raise(TN_EVALUE, operation, "the time-out is %g seconds (above 0, at most %g)",
                  o->timeout, TN__TIMEOUT_MOST);
    } else if (wrong) {
        tn__raise(TN_EVALUE, operation, "%s", wrong);
    } else if (o->message_limit < LIMIT_LEAST) {
        tn__raise(TN_EVALUE, operation, "message_limit is %lld bytes (at least %d)",
                  (long long)o->message_limit, LIMIT_LEAST);
    } else if (o->backlog_limit < LIMIT_LEAST) {
        tn__raise(TN_EVALUE, operation, "backlog_limit is %lld bytes (at least %d)",
                  (long long)o->backlog_limit, LIMIT_LEAST);
    }
    return !tn__pending();
}

static tn_rpc *rpc_alloc(int rank, int ranks, const tn_rpc_options *o) {
    tn_rpc *r = tn__calloc(1, sizeof(*r));
    tn__peer *peers = tn__calloc((size_t)ranks, sizeof(*peers));
    pthread_t *threads = tn__calloc((size_t)o->threads_most, sizeof(*threads));
    if (!r || !peers || !threads) {
        free(r);
        free(peers);
        free(threads);
        tn__raise(TN_ENOMEM, "rpc_new", "no memory for %d ranks", ranks);
        return NULL;
    }
    *r = (tn_rpc){.refs = 1,
                  .process = tn__process(),
                  .options = *o,
                  .rank = rank,
                  .ranks = ranks,
                  .peers = peers,
                  .threads = threads,
                  .epoll = -1,
                  .wake = -1};
    pthread_mutex_init(&r->lock, NULL);
    tn__condition_init(&r->queued);
    tn__condition_init(&r->quiet);
    tn__condition_init(&r->grads_free);
    for (int i = 0; i < ranks; i++) {
        peers[i].fd = -1;
        pthread_mutex_init(&peers[i].lock, NULL);
    }
    return r;
}

tn_rpc *tn_rpc_new(tn_group *g, tn_rpc_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "rpc_new", "tn_rpc") ||
        !options_sound(&options) || (g && tn__group_refuse_inherited(g, "rpc_new"))) {
        return NULL;
    }
    if (tn_group_rank(g) < 0) {
        tn__raise(TN_ESTATE, "rpc_new", "this rank is not a member of group %s", tn_group_name(g));
        return NULL;
    }
    tn_rpc *r = rpc_alloc(tn_group_rank(g), tn_group_size(g), &options);
    if (r && g) {
        r->store = g->store ? tn__store_keep(g->store) : NULL;
        r->number = g->rpcs++;
        snprintf(r->interface, sizeof(r->interface), "%s", g->interface);
    }
    if (r && (!tn__remote_builtins(r) || !tn__grad_builtins(r) ||
              !tn__peers_announce(r, tn__now() + options.timeout))) {
        tn__rpc_release(r);
        return NULL;
    }
    return r;
}

tn_status tn_rpc_start(tn_rpc *r) {
    if (!tn__rpc_usable(r, "rpc_start")) {
        return tn_error();
    }
    if (r->started) {
        return tn__raise(TN_ESTATE, "rpc_start", "it was called before");
    }
    r->started = true; /* functions that others call may call before this returns */
    if (!tn__rpc_start_threads(r) || !tn__peers_join(r, tn__now() + r->options.timeout) ||
        !tn__peers_start(r)) {
        tn__peers_stop(r);
        for (int i = 0; i < r->ranks; i++) {
            tn__rpc_lose(r, i, "tn_rpc_start has failed");
        }
    }
    return tn_error();
}

int tn_rpc_rank(const tn_rpc *r) {
    return r ? r->rank : 0;
}

int tn_rpc_size(const tn_rpc *r) {
    return r ? r->ranks : 1;
}

int tn_rpc_caller(void) {
    return tn__served ? tn__served->caller : -1;
}

/* ---- Shutting down ---------------------------------------------------------------------------- *
 *
 * In rounds: each rank waits until nothing runs on it and it waits for nothing, and tells all how
 * many calls it has sent and answered so far. When as many had been answered in one round as have
 * been sent in the next, no call is on its way anywhere (Mattern 1987, "Algorithms for distributed
 * termination detection"). A rank can be one round ahead of another, so each keeps two. */

void tn__rpc_note_end(tn_rpc *r, int from, const tn__rpc_head *h) {
    pthread_mutex_lock(&r->lock);
    r->peers[from].ended[h->number % 2] =
        (tn__rpc_ending){.round = h->number, .sent = h->context, .done = h->microseconds};
    pthread_cond_broadcast(&r->quiet);
    pthread_mutex_unlock(&r->lock);
}

static bool is_quiet(const tn_rpc *r) {
    return !r->first && r->running == 0 && r->waiting == 0;
}

/* Waits on `quiet`; false at the deadline. */
static bool await_change(tn_rpc *r, double deadline) {
    if (isinf(deadline)) {
        pthread_cond_wait(&r->quiet, &r->lock);
        return true;
    }
    struct timespec until = tn__timespec(deadline);
    return pthread_cond_timedwait(&r->quiet, &r->lock, &until) == 0;
}

/* Under the lock: the first rank that has not said where it is in this round; -1: none. */
static int missing_rank(const tn_rpc *r, uint64_t round) {
    for (int i = 0; i < r->ranks; i++) {
        if (i != r->rank && r->peers[i].ended[round % 2].round != round) {
            return i;
        }
    }
    return -1;
}

/* Under the lock: waits for all ranks' word in this round. False after raising. */
static bool await_round(tn_rpc *r, uint64_t round, double deadline, double timeout) {
    for (int missing; (missing = missing_rank(r, round)) >= 0;) {
        const tn__peer *p = &r->peers[missing];
        if (p->gone) {
            tn__raise(TN_EPEER, "rpc_shutdown", "%s", p->why);
            return false;
        }
        if (!await_change(r, deadline)) {
            tn__raise(TN_EPEER, "rpc_shutdown", "rank %d has not ended within %.3g seconds",
                      missing, timeout);
            return false;
        }
    }
    return true;
}

/* One frame for each other rank, before any is sent; false after raising. */
static bool tell_all(tn_rpc *r, const tn__rpc_ending *mine) {
    tn__rpc_head h = {.kind = TN__RPC_ENDING,
                      .number = mine->round,
                      .context = mine->sent,
                      .microseconds = mine->done};
    tn__rpc_frame *list = NULL, *next;
    bool fine = true;
    for (int i = 1; i < r->ranks && fine; i++) {
        tn__rpc_frame *f = tn__rpc_frame_new(&h);
        fine = f != NULL;
        if (f) {
            f->next = list;
            list = f;
        }
    }
    if (!fine) {
        tn__raise(TN_ENOMEM, "rpc_shutdown", "no memory for a word to %d ranks", r->ranks - 1);
    }
    for (int to = 0; list; list = next, to++) {
        next = list->next;
        to += to == r->rank;
        if (fine) {
            tn__peer_send(r, to, list);
        } else {
            free(list);
        }
    }
    return fine;
}

/* Waits until nothing runs here, and says what has been done. False after raising. */
static bool settle_here(tn_rpc *r, tn__rpc_ending *mine, double deadline, double timeout) {
    pthread_mutex_lock(&r->lock);
    while (!is_quiet(r)) {
        if (!await_change(r, deadline)) {
            tn__raise(TN_EPEER, "rpc_shutdown", "calls were still running after %.3g seconds",
                      timeout);
            break;
        }
    }
    mine->sent = r->calls_sent;
    mine->done = r->calls_done;
    pthread_mutex_unlock(&r->lock);
    return !tn__pending();
}

/* One round, or the rest of the one that an error has interrupted; *over: it was the last. False
 * after raising. */
static bool end_round(tn_rpc *r, double deadline, double timeout, bool *over) {
    if (r->said.round == 0) {
        tn__rpc_ending mine = {.round = r->rounds + 1};
        if (!settle_here(r, &mine, deadline, timeout) || !tell_all(r, &mine)) {
            return false;
        }
        r->said = mine;
    }
    pthread_mutex_lock(&r->lock);
    bool fine = await_round(r, r->said.round, deadline, timeout);
    tn__rpc_ending before = r->sums, sums = r->said;
    for (int i = 0; fine && i < r->ranks; i++) {
        sums.sent += i == r->rank ? 0 : r->peers[i].ended[sums.round % 2].sent;
        sums.done += i == r->rank ? 0 : r->peers[i].ended[sums.round % 2].done;
    }
    pthread_mutex_unlock(&r->lock);
    if (fine) {
        *over = before.round > 0 && before.done == sums.sent;
        r->rounds = sums.round;
        const tn__rpc_ending none = {0};
        r->sums = *over ? none : sums;
        r->said = none;
    }
    return fine;
}

tn_status tn_rpc_shutdown(tn_rpc *r, double timeout) {
    if (!tn__rpc_usable(r, "rpc_shutdown")) {
        return tn_error();
    }
    if (!(timeout >= 0 && timeout <= TN__TIMEOUT_MOST)) {
        return tn__raise(TN_EVALUE, "rpc_shutdown", "a time-out of %g seconds (0 to %g)", timeout,
                         TN__TIMEOUT_MOST);
    }
    if (!r->started || (tn__served && tn__served->rpc == r)) {
        return tn__raise(TN_ESTATE, "rpc_shutdown", "%s",
                         r->started ? "called inside a function that a rank called"
                                    : "tn_rpc_start was not called");
    }
    pthread_mutex_lock(&r->lock);
    bool other = r->ending;
    r->ending = true;
    pthread_mutex_unlock(&r->lock);
    if (other) {
        return tn__raise(TN_ESTATE, "rpc_shutdown", "another thread is in it");
    }
    double deadline = timeout > 0 ? tn__now() + timeout : (double)INFINITY;
    bool over = false;
    while (!over && end_round(r, deadline, timeout, &over)) {
    }
    pthread_mutex_lock(&r->lock);
    r->ending = false;
    pthread_mutex_unlock(&r->lock);
    return tn_error();
}

void tn_rpc_free(tn_rpc *r) {
    if (!r || tn__inherited(r->process)) {
        return;
    }
    if (tn__served && tn__served->rpc == r) {
        tn__raise(TN_ESTATE, "rpc_free", "called inside a function that a rank called");
        return;
    }
    tn__peers_stop(r);
    for (int i = 0; i < r->ranks; i++) {
        tn__rpc_lose(r, i, "tn_rpc_free was called on this side");
    }
    tn__rpc_stop_threads(r);
    pthread_mutex_lock(&r->lock);
    tn__kept *kept = tn__kept_of_gone(r, -1);
    struct tn__owed *owed = tn__owed_of_gone(r, -1);
    pthread_mutex_unlock(&r->lock);
    tn__kept_free(kept);
    tn__owed_free(owed);
    tn__rpc_release(r);
}
