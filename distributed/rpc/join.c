/* Starting: the ranks find each other in the store, and each two of them make one connection.
 *
 * A rank listens, tells the store where, dials all ranks below its own and waits for those above.
 * Both ends of a connection show that they know the secret, as clients and servers of the TCP store
 * do (store/wire.h), before anything else is said. The secret is made from the job's token where
 * the store has one; else it is in the store: who can read that may call. When all have connected
 * nobody listens any more: the port is open only while the ranks start.
 *
 * Whoever connects is heard one after the other. A stranger that says nothing holds the others up
 * for a moment; a rank that was taken for one dials again.
 */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/engine/gloo/gloo.h"
#include "distributed/init/token.h"
#include "distributed/rpc/connections.h"
#include "distributed/store/net.h"
#include "distributed/store/tcp.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SECRET_BYTES = 16, SECRET_DIGITS = 2 * SECRET_BYTES };
#define GUEST_SECONDS 2.0
#define FIRST_PAUSE 0.01
#define LONGEST_PAUSE 0.25

typedef struct joining {
    tn__connections *connections;
    tn_engine_options meet;
    char secret[TN__TOKEN];
    int listener;
    char why[TN_ENGINE_WHY]; /* it has failed */
} joining;

/* Says why, and returns false. */
TN_PRINTF(2, 3) static bool join_fails(joining *j, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(j->why, sizeof(j->why), format, arguments);
    va_end(arguments);
    return false;
}

/* Without a token: what one of the ranks has put into the store. */
static bool make_secret(joining *j) {
    tn_store *store = j->meet.store;
    if (store->token) {
        tn__token_derive(store->token, "rpc", j->secret);
        return true;
    }
    if (!tn__token_random(j->secret, SECRET_BYTES)) {
        return join_fails(j, "the system gives no random numbers");
    }
    tn_store_call c = {.kind = TN_STORE_COMPARE_SET,
                       .key = "secret",
                       .data = j->secret,
                       .bytes = SECRET_DIGITS,
                       .deadline = j->meet.deadline};
    if (store->run(store, &c) != TN_OK) { return join_fails(j, "the store: %s", c.why); }
    bool fine = c.value.bytes == SECRET_DIGITS;
    if (fine) { memcpy(j->secret, c.value.data, c.value.bytes); }
    free(c.value.data);
    return fine || join_fails(j, "the secret in the store is malformed");
}

/* Exchanges ranks, which ends the greeting; `first`: this side begins. 0, or an errno. */
static int exchange_ranks(const joining *j, int fd, bool first, uint64_t *rank, double until) {
    uint64_t mine = (uint64_t)j->connections->rank;
    struct iovec part = {&mine, sizeof(mine)};
    int error = first ? tn__net_send(fd, &part, 1, until) : 0;
    error = error ? error : tn__net_receive(fd, rank, sizeof(*rank), until);
    return error || first ? error : tn__net_send(fd, &part, 1, until);
}

/* ---- Ranks above ----------------------------------------------------------------------------- */

/* Whether it is a rank that is missing. */
static bool admit_rank(joining *j, int fd) {
    tn__connections *c = j->connections;
    double until = fmin(j->meet.deadline, tn__now() + GUEST_SECONDS);
    uint64_t rank;
    if (!tn__tcp_greet(fd, j->secret, until) || exchange_ranks(j, fd, false, &rank, until) ||
        rank <= (uint64_t)c->rank || rank >= (uint64_t)c->ranks || c->list[rank].fd >= 0) {
        return false;
    }
    tn__net_options(fd);
    c->list[rank].fd = fd;
    return true;
}

/* "no connection from rank 2, 5"; false if none is missing. */
static bool name_missing(joining *j) {
    const tn__connections *c = j->connections;
    size_t length = 0;
    for (int r = c->rank + 1; r < c->ranks && length < sizeof(j->why); r++) {
        if (c->list[r].fd < 0) {
            length += (size_t)snprintf(j->why + length, sizeof(j->why) - length, "%s%d",
                                       length ? ", " : "no connection from rank ", r);
        }
    }
    return length > 0;
}

static bool accept_ranks(joining *j) {
    while (name_missing(j)) {
        struct pollfd polled = {.fd = j->listener, .events = POLLIN};
        int left = tn__milliseconds_left(j->meet.deadline);
        if (left <= 0) { return false; }
        poll(&polled, 1, left);
        int fd = tn__above_streams(accept4(j->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd >= 0 && !admit_rank(j, fd)) {
            close(fd);
        } else if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
            size_t length = strnlen(j->why, 400);
            snprintf(j->why + length, sizeof(j->why) - length, ", which could not be taken: %s",
                     strerror(errno));
            return false;
        }
    }
    return true;
}

/* ---- Ranks below ----------------------------------------------------------------------------- */

/* Says which rank this is, and waits until the other one, which knows the secret, has taken it. */
static bool enter_rank(const joining *j, int to, int fd, char *reason) {
    uint64_t rank = 0;
    int error = exchange_ranks(j, fd, true, &rank, j->meet.deadline);
    error = error == 0 && rank != (uint64_t)to ? EPROTO : error;
    if (error) {
        snprintf(reason, TN_STORE_WHY, "%s",
                 error == EPROTO ? "what it sends is out of place" : strerror(error));
    }
    return error == 0;
}

static bool dial_rank(joining *j, int to, const tn_store_value *at) {
    char host[TN__ADDRESS], reason[TN_STORE_WHY] = "";
    int port, fd;
    double pause = FIRST_PAUSE;
    if (at->bytes >= TN__ADDRESS || sscanf((const char *)at->data, "%63s %d", host, &port) != 2) {
        return join_fails(j, "rank %d gave no address", to);
    }
    for (;;) {
        tn__dialed dialed = tn__tcp_dial(host, port, j->secret, j->meet.deadline, &fd, reason);
        if (dialed == TN__DIAL_OURS && enter_rank(j, to, fd, reason)) {
            j->connections->list[to].fd = fd;
            return true;
        }
        if (dialed == TN__DIAL_OURS) { close(fd); }
        bool again =
            dialed == TN__DIAL_SILENT || dialed == TN__DIAL_NO_HOST || dialed == TN__DIAL_OURS;
        if (!again || !tn__rest_until(&pause, LONGEST_PAUSE, j->meet.deadline)) {
            return join_fails(j, "rank %d: %s", to, reason);
        }
    }
}

/* ---- All ------------------------------------------------------------------------------------- */

static bool listen_here(joining *j, char mine[TN__ADDRESS]) {
    char address[TN__ADDRESS - 8];
    int port = 0;
    if (!tn__gloo_address(&j->meet, mine, j->why)) { return false; }
    snprintf(address, sizeof(address), "%s", mine);
    j->listener = tn__net_listen(address, &port, j->why);
    snprintf(mine, TN__ADDRESS, "%s %d", address, port);
    return j->listener >= 0;
}

static bool connect_ranks(joining *j, tn_store_value *at) {
    char mine[TN__ADDRESS] = "";
    bool fine = make_secret(j) && listen_here(j, mine) &&
                tn__gloo_meet(&j->meet, "at", mine, strlen(mine) + 1, at, j->why);
    for (int to = 0; fine && to < j->connections->rank; to++) {
        fine = dial_rank(j, to, &at[to]);
    }
    return fine && accept_ranks(j);
}

bool tn__connections_join(tn__connections *c, tn_store *store, const char *interface,
                          double timeout) {
    joining j = {.connections = c,
                 .meet = {.store = store,
                          .rank = c->rank,
                          .ranks = c->ranks,
                          .deadline = tn__now() + timeout,
                          .timeout = timeout,
                          .interface = interface},
                 .listener = -1};
    tn_store_value *at = tn__calloc_for((size_t)c->ranks, sizeof(*at), "rpc_start");
    bool fine = at && connect_ranks(&j, at);
    if (at && !fine) {
        tn__raise(TN_EPEER, "rpc_start", "rank %d of %d: %s", c->rank, c->ranks, j.why);
    }
    if (j.listener >= 0) { close(j.listener); }
    tn__gloo_forget(at, c->ranks);
    free(at);
    return fine;
}
