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
#include "distributed/store/session.h"
#include "distributed/store/tcp.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { SECRET = 16 };
#define GUEST_SECONDS 2.0
#define FIRST_PAUSE 0.01
#define LONGEST_PAUSE 0.25

typedef struct joining {
    tn__connections *connections;
    tn_engine_options meet;
    tn__store_hub hub; /* only its token, the secret, is used */
    char secret[TN__TOKEN];
    int listener;
} joining;

/* ---- The secret ------------------------------------------------------------------------------ */

/* Without a token: what one of the ranks has put into the store. */
static bool share_secret(joining *j, char *why) {
    uint8_t random[SECRET];
    char reason[TN_STORE_WHY];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        snprintf(why, TN_ENGINE_WHY, "the system gives no random numbers");
        return false;
    }
    for (int i = 0; i < SECRET; i++) {
        snprintf(j->secret + 2 * (size_t)i, 3, "%02x", random[i]);
    }
    tn_store *store = j->meet.store;
    tn_store_value none = {0}, mine = {j->secret, 2 * SECRET}, found = {0};
    if (store->compare_set(store, "secret", &none, &mine, &found, j->meet.deadline, reason) !=
        TN_OK) {
        snprintf(why, TN_ENGINE_WHY, "the store: %s", reason);
        return false;
    }
    bool fine = found.bytes == 2 * SECRET;
    if (fine) {
        memcpy(j->secret, found.data, found.bytes);
    } else {
        snprintf(why, TN_ENGINE_WHY, "the secret in the store is malformed");
    }
    free(found.data);
    return fine;
}

static bool make_secret(joining *j, char *why) {
    if (!j->meet.store->token) { return share_secret(j, why); }
    tn__token_derive(j->meet.store->token, "rpc", j->secret);
    return true;
}

/* ---- Ranks above ----------------------------------------------------------------------------- */

/* Hello and proof, and no more than that: what follows is frames. */
static bool check_proof(joining *j, int fd, double until) {
    static const size_t wanted[] = {TN__HELLO, TN__DIGEST};
    uint8_t own[TN__PLACE], data[TN__HELLO + TN__DIGEST];
    tn__session s;
    if (!tn__net_place(fd, false, own) || !tn__session_begin(&s, &j->hub, own)) { return false; }
    bool fine = true;
    for (int i = 0; fine && i < 2; i++) {
        fine = tn__net_receive(fd, data, wanted[i], until) == 0 &&
               tn__session_take(&s, data, wanted[i], tn__now());
        struct iovec parts[2];
        int n = fine ? tn__session_output(&s, parts) : 0;
        size_t bytes = n ? parts[0].iov_len : 0; /* a greeting is one part */
        fine = fine && (n == 0 || tn__net_send(fd, parts, n, until) == 0);
        tn__session_sent(&s, bytes);
    }
    fine = fine && tn__session_trusted(&s);
    tn__session_end(&s);
    return fine;
}

/* Exchanges ranks, which ends the greeting. False with an errno in *error, or 0: out of place. */
static bool exchange_ranks(const joining *j, int fd, bool first, uint64_t *rank, double until,
                           int *error) {
    uint8_t mine[TN__RPC_HEAD], theirs[TN__RPC_HEAD];
    tn__rpc_head h = {.kind = TN__RPC_RANK, .number = (uint64_t)j->connections->rank};
    struct iovec part = {mine, sizeof(mine)};
    tn__rpc_head_write(mine, &h);
    *error = first ? tn__net_send(fd, &part, 1, until) : 0;
    *error = *error ? *error : tn__net_receive(fd, theirs, sizeof(theirs), until);
    if (*error || !tn__rpc_head_read(theirs, &h) || h.kind != TN__RPC_RANK) { return false; }
    *rank = h.number;
    *error = first ? 0 : tn__net_send(fd, &part, 1, until);
    return *error == 0;
}

/* Whether it is a rank that is missing. */
static bool admit_rank(joining *j, int fd) {
    tn__connections *c = j->connections;
    double until = fmin(j->meet.deadline, tn__now() + GUEST_SECONDS);
    uint64_t rank;
    int error;
    if (!check_proof(j, fd, until) || !exchange_ranks(j, fd, false, &rank, until, &error) ||
        rank <= (uint64_t)c->rank || rank >= (uint64_t)c->ranks || c->list[rank].fd >= 0) {
        return false;
    }
    tn__net_options(fd);
    c->list[rank].fd = fd;
    return true;
}

/* "no connection from rank 2, 5"; false if none is missing. */
static bool name_missing(const joining *j, char *why) {
    const tn__connections *c = j->connections;
    size_t length = 0;
    for (int r = c->rank + 1; r < c->ranks && length < TN_ENGINE_WHY; r++) {
        if (c->list[r].fd < 0) {
            length += (size_t)snprintf(why + length, TN_ENGINE_WHY - length, "%s%d",
                                       length ? ", " : "no connection from rank ", r);
        }
    }
    return length > 0;
}

static bool accept_ranks(joining *j, char *why) {
    char missing[TN_ENGINE_WHY];
    while (name_missing(j, missing)) {
        struct pollfd polled = {.fd = j->listener, .events = POLLIN};
        int left = tn__milliseconds_left(j->meet.deadline);
        if (left <= 0) {
            snprintf(why, TN_ENGINE_WHY, "%s", missing);
            return false;
        }
        poll(&polled, 1, left);
        int fd = tn__above_streams(accept4(j->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd >= 0 && !admit_rank(j, fd)) {
            close(fd);
        } else if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
            snprintf(why, TN_ENGINE_WHY, "%.400s, which could not be taken: %s", missing,
                     strerror(errno));
            return false;
        }
    }
    return true;
}

/* ---- Ranks below ----------------------------------------------------------------------------- */

/* Says which rank this is, and waits until the other one, which knows the secret, has taken it. */
static bool enter_rank(const joining *j, int to, int fd, char *reason) {
    uint64_t rank;
    int error;
    bool fine =
        exchange_ranks(j, fd, true, &rank, j->meet.deadline, &error) && rank == (uint64_t)to;
    if (!fine) {
        snprintf(reason, TN_STORE_WHY, "%s",
                 error ? strerror(error) : "what it sends is out of place");
    }
    return fine;
}

static bool dial_rank(joining *j, int to, const tn_store_value *at, char *why) {
    char host[TN__ADDRESS], reason[TN_STORE_WHY] = "";
    int port, fd;
    double pause = FIRST_PAUSE;
    if (at->bytes >= TN__ADDRESS || sscanf((const char *)at->data, "%63s %d", host, &port) != 2) {
        snprintf(why, TN_ENGINE_WHY, "rank %d gave no address", to);
        return false;
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
            snprintf(why, TN_ENGINE_WHY, "rank %d: %s", to, reason);
            return false;
        }
    }
}

/* ---- All ------------------------------------------------------------------------------------- */

static bool listen_here(joining *j, char *mine, char *why) {
    char address[TN__ADDRESS - 8];
    int port = 0;
    if (!tn__gloo_address(&j->meet, mine, why)) { return false; }
    snprintf(address, sizeof(address), "%s", mine);
    j->listener = tn__net_listen(address, &port, why);
    snprintf(mine, TN__ADDRESS, "%s %d", address, port);
    return j->listener >= 0;
}

static bool connect_ranks(joining *j, char *why) {
    char mine[TN__ADDRESS] = "";
    int rank = j->connections->rank, ranks = j->connections->ranks;
    tn_store_value *values = tn__calloc((size_t)ranks, sizeof(*values));
    if (!values) {
        snprintf(why, TN_ENGINE_WHY, "no memory for %d ranks", ranks);
        return false;
    }
    bool fine = make_secret(j, why) && listen_here(j, mine, why) &&
                tn__gloo_meet(&j->meet, "at", mine, strlen(mine) + 1, values, why);
    for (int to = 0; fine && to < rank; to++) {
        fine = dial_rank(j, to, &values[to], why);
    }
    fine = fine && accept_ranks(j, why);
    if (j->listener >= 0) { close(j->listener); }
    tn__gloo_forget(values, ranks);
    free(values);
    return fine;
}

bool tn__connections_join(tn__connections *c, tn_store *store, const char *interface,
                          double timeout) {
    char why[TN_ENGINE_WHY] = "";
    joining j = {.connections = c,
                 .meet = {.store = store,
                          .rank = c->rank,
                          .ranks = c->ranks,
                          .deadline = tn__now() + timeout,
                          .timeout = timeout,
                          .interface = interface},
                 .listener = -1};
    j.hub.token = j.secret;
    if (!connect_ranks(&j, why)) {
        tn__raise(TN_EPEER, "rpc_start", "rank %d of %d: %s", c->rank, c->ranks, why);
        return false;
    }
    return true;
}
