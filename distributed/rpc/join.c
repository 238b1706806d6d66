/* Starting and leaving. The ranks find each other in the store, and each two make one connection.
 *
 * A rank listens, tells the store where, dials all ranks below its own and waits for those above.
 * Both ends of a connection show that they know its secret, as clients and servers of the TCP store
 * do (store/wire.h), before anything else is said. It is made from the job's token and from what
 * the rank that listens tells the store; without a token from that alone: who can read the store
 * may call. When all have connected nobody listens any more: the port is open only while the ranks
 * start.
 *
 * Whoever connects is heard one after the other. A stranger that says nothing holds the others up
 * for a moment; a rank that was taken for one dials again.
 */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/group/engine/gloo/gloo.h"
#include "distributed/group/group.h"
#include "distributed/init/token.h"
#include "distributed/rpc/rpc.h"
#include "distributed/store/net.h"
#include "distributed/store/tcp.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SALT_BYTES = 16 };
#define GUEST_SECONDS 2.0
#define FIRST_PAUSE 0.01
#define LONGEST_PAUSE 0.25

typedef struct joining {
    tn_rpc *rpc;
    tn_engine_options meet;
    char secret[TN__TOKEN]; /* of those that dial this rank */
    int listener;
} joining;

/* Of those that dial the rank with this salt. */
static void make_secret(const joining *j, const char *salt, char secret[TN__TOKEN]) {
    char job[TN__TOKEN + 8];
    const char *token = j->meet.store->token;
    snprintf(job, sizeof(job), "rpc %s", salt);
    tn__token_derive(token ? token : "", job, secret);
}

/* Exchanges ranks, which ends the greeting; `first`: this side begins. 0, or an errno. */
static int exchange_ranks(const joining *j, int fd, bool first, uint64_t *rank, double until) {
    uint64_t mine = (uint64_t)j->rpc->rank;
    struct iovec part = {&mine, sizeof(mine)};
    int error = first ? tn__net_send(fd, &part, 1, until) : 0;
    error = error ? error : tn__net_receive(fd, rank, sizeof(*rank), until);
    return error || first ? error : tn__net_send(fd, &part, 1, until);
}

/* ---- Ranks above ----------------------------------------------------------------------------- */

/* Whether it is a rank that is missing. */
static bool admit_rank(joining *j, int fd) {
    tn_rpc *r = j->rpc;
    double until = fmin(j->meet.deadline, tn__now() + GUEST_SECONDS);
    uint64_t rank;
    if (!tn__tcp_greet(fd, j->secret, until) || exchange_ranks(j, fd, false, &rank, until) ||
        rank <= (uint64_t)r->rank || rank >= (uint64_t)r->ranks || r->peers[rank].fd >= 0) {
        return false;
    }
    tn__net_options(fd);
    r->peers[rank].fd = fd;
    return true;
}

/* "2, 5": the ranks without a connection; "" if there are none. */
enum { MISSING = 400 };
static const char *name_missing(const tn_rpc *r, char text[MISSING]) {
    size_t length = 0;
    *text = 0;
    for (int i = r->rank + 1; i < r->ranks && length < MISSING; i++) {
        if (r->peers[i].fd < 0) {
            length +=
                (size_t)snprintf(text + length, MISSING - length, "%s%d", length ? ", " : "", i);
        }
    }
    return text;
}

static bool accept_ranks(joining *j) {
    char missing[MISSING];
    while (*name_missing(j->rpc, missing)) {
        struct pollfd polled = {.fd = j->listener, .events = POLLIN};
        int left = tn__milliseconds_left(j->meet.deadline);
        if (left <= 0) { return tn__fail(TN_EPEER, NULL, "no connection from rank %s", missing); }
        poll(&polled, 1, left);
        int fd = tn__above_streams(accept4(j->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd >= 0 && !admit_rank(j, fd)) {
            close(fd);
        } else if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
            return tn__fail(TN_EPEER, NULL,
                            "no connection from rank %s, which could not be taken: %s", missing,
                            strerror(errno));
        }
    }
    return true;
}

/* ---- Ranks below ----------------------------------------------------------------------------- */

/* Says which rank this is, and waits until the other one has taken it. */
static bool enter_rank(const joining *j, int to, int fd, char *reason) {
    uint64_t rank;
    int error = exchange_ranks(j, fd, true, &rank, j->meet.deadline);
    if (error) {
        snprintf(reason, TN_STORE_WHY, "%s", strerror(error));
        close(fd);
    } else {
        j->rpc->peers[to].fd = fd;
    }
    return !error;
}

static bool dial_rank(joining *j, int to, const tn_store_value *at) {
    char host[TN__ADDRESS], salt[2 * SALT_BYTES + 1], secret[TN__TOKEN], reason[TN_STORE_WHY] = "";
    int port, fd;
    double pause = FIRST_PAUSE;
    const char *text = at->data;
    if (!text || text[at->bytes - 1] || sscanf(text, "%63s %d %32s", host, &port, salt) != 3) {
        return tn__fail(TN_EPEER, NULL, "rank %d gave no address", to);
    }
    tn__dialed dialed;
    do {
        make_secret(j, salt, secret);
        dialed = tn__tcp_dial(host, port, secret, j->meet.deadline, &fd, reason);
        if (dialed == TN__DIAL_OURS && enter_rank(j, to, fd, reason)) { return true; }
    } while ((dialed == TN__DIAL_SILENT || dialed == TN__DIAL_NO_HOST || dialed == TN__DIAL_OURS) &&
             tn__rest_until(&pause, LONGEST_PAUSE, j->meet.deadline));
    return tn__fail(TN_EPEER, NULL, "rank %d: %s", to, reason);
}

/* ---- All ------------------------------------------------------------------------------------- */

/* "127.0.0.1 34567 5f0c…": where this rank listens, and its salt. */
static bool listen_here(joining *j, char *mine, size_t bytes) {
    char address[TN__ADDRESS], salt[TN__TOKEN];
    int port = 0;
    if (!tn__gloo_address(&j->meet, address)) { return false; }
    if (!tn__token_random(salt, SALT_BYTES)) {
        return tn__fail(TN_EPEER, NULL, "the system gives no random numbers");
    }
    make_secret(j, salt, j->secret);
    j->listener = tn__net_listen(address, &port, NULL);
    snprintf(mine, bytes, "%s %d %s", address, port, salt);
    return j->listener >= 0;
}

static bool connect_ranks(joining *j, tn_store_value *at) {
    char mine[TN__ADDRESS + TN__TOKEN + 16] = "";
    bool fine = listen_here(j, mine, sizeof(mine)) &&
                tn__gloo_meet(&j->meet, "at", mine, strlen(mine) + 1, at);
    for (int to = 0; fine && to < j->rpc->rank; to++) {
        fine = dial_rank(j, to, &at[to]);
    }
    return fine && accept_ranks(j);
}

/* Connects to all ranks; false after raising. */
static bool join_ranks(tn_rpc *r) {
    joining j = {.rpc = r,
                 .meet = {.store = r->store,
                          .rank = r->rank,
                          .ranks = r->ranks,
                          .deadline = tn__now() + r->options.timeout,
                          .timeout = r->options.timeout,
                          .interface = r->interface},
                 .listener = -1};
    tn_store_value *at = tn__calloc_for((size_t)r->ranks, sizeof(*at), "rpc_start");
    tn__quiet(1);
    bool fine = at && connect_ranks(&j, at);
    tn__quiet(-1);
    if (at && !fine) { tn__raise_again("rpc_start", "rank %d of %d", r->rank, r->ranks); }
    if (j.listener >= 0) { close(j.listener); }
    tn__gloo_forget(at, r->ranks);
    free(at);
    return fine;
}

/* ---- What the connections report ------------------------------------------------------------- */

static void frame_arrived(tn_rpc *r, int from, tn__rpc_frame *f) {
    switch (f->head.kind) {
    case TN__RPC_REPLY:
        tn__rpc_reply(r, from, f);
        return;
    case TN__RPC_FORGET:
        tn__rpc_forget_graph(r, from, f->head.number);
        break;
    case TN__RPC_END:
        pthread_mutex_lock(&r->lock);
        r->peers[from].ended = true;
        tn__rpc_unlock(r);
        break;
    default: /* a call of some kind */
        tn__rpc_serve(r, from, f);
        return;
    }
    free(f);
}

/* A rank is gone, for good. */
static void rank_lost(tn_rpc *r, int rank, const char *why) {
    tn__rpc_lose(r, rank, why);
    tn__rpc_forget_graph(r, rank, 0);
}

static void lose_all(tn_rpc *r, const char *why) {
    for (int i = 0; i < r->ranks; i++) {
        rank_lost(r, i, why);
    }
}

/* ---- Starting -------------------------------------------------------------------------------- */

tn_status tn_rpc_start(tn_rpc *r) {
    if (!tn__rpc_usable(r, "rpc_start")) { return tn_error(); }
    if (r->started) { return tn__raise(TN_ESTATE, "rpc_start", "it was called before"); }
    r->arrived = frame_arrived, r->lost = rank_lost;
    bool joined = tn__rpc_start_serving(r) && (r->ranks == 1 || join_ranks(r));
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
