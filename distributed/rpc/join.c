/* Starting: the ranks find each other in the store, and each two of them make one connection.
 *
 * A rank listens, tells the store where, dials all ranks below its own and waits for those above.
 * Both ends of a connection show that they know the secret, as clients and servers of the TCP store
 * do (store/wire.h), before anything else is said. The secret is made from the job's token where
 * the store has one; else rank 0 makes one and puts it into the store: who can read that may call.
 * When all have connected nobody listens any more: the port is open only while the ranks start. A
 * rank that ends before it has connected is noticed where watch.c can.
 */
#define _GNU_SOURCE
#include "core/descriptor.h"
#include "core/memory.h"
#include "distributed/group/engine/gloo/gloo.h"
#include "distributed/init/token.h"
#include "distributed/rpc/rpc.h"
#include "distributed/rpc/watch.h"
#include "distributed/store/net.h"
#include "distributed/store/session.h"
#include "distributed/store/tcp.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { GUESTS_MOST = 64, SECRET = 16, TURN = 200 /* milliseconds between looks at the others */ };
#define GUEST_SECONDS 5.0
#define STORE_SECONDS 1.0 /* for its answers in one look at the others; it may be stopped */
#define FIRST_PAUSE 0.01
#define LONGEST_PAUSE 0.25

/* Who has connected, and is a stranger until it has shown the secret and said its rank. */
typedef struct guest {
    tn__session session;
    tn__rpc_reader reader; /* after the proof */
    bool trusted;
    int fd; /* -1: the place is free */
    double since;
} guest;

typedef struct joining {
    tn_rpc *rpc;
    tn_engine_options meet; /* with a store of its own */
    tn__store_hub hub;      /* only its token is used */
    char secret[TN__TOKEN];
    int listener, port;
    int missing; /* ranks above this one that have not connected */
    guest guests[GUESTS_MOST];
    tn__watched *others; /* [ranks] */
} joining;

/* ---- The secret ------------------------------------------------------------------------------ */

static bool make_secret(joining *j, char *why) {
    const char *token = j->meet.store->token;
    if (token) {
        tn__token_derive(token, "rpc", j->secret);
        return true;
    }
    uint8_t random[SECRET];
    double deadline = j->meet.deadline;
    tn_store_value value = {0};
    if (j->meet.rank == 0) {
        if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
            tn__why(why, TN_EIO, "the system gives no random numbers");
            return false;
        }
        for (int i = 0; i < SECRET; i++) {
            snprintf(j->secret + 2 * (size_t)i, 3, "%02x", random[i]);
        }
        return j->meet.store->set(j->meet.store, "secret", j->secret, 2 * SECRET, deadline, why) ==
               TN_OK;
    }
    if (!tn__gloo_await(&j->meet, "secret", &value, why)) {
        if (!*why) {
            tn__why(why, TN_EPEER, "rank 0 has put no secret into the store");
        }
        return false;
    }
    bool fine = value.bytes == 2 * SECRET;
    if (fine) {
        memcpy(j->secret, value.data, value.bytes);
    } else {
        tn__why(why, TN_EFORMAT, "the secret in the store is malformed");
    }
    free(value.data);
    return fine;
}

/* ---- Those above ----------------------------------------------------------------------------- */

static void drop_guest(joining *j, guest *g) {
    if (g->fd >= 0) {
        tn__session_end(&g->session);
        tn__reader_end(&g->reader);
        close(g->fd);
        g->fd = -1;
    }
}

/* Accepts one; where all places are taken, instead of the oldest that has not shown the secret. */
static void accept_guest(joining *j) {
    int fd = tn__above_streams(accept4(j->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    guest *place = NULL;
    for (int i = 0; fd >= 0 && i < GUESTS_MOST; i++) {
        guest *g = &j->guests[i];
        if (g->fd < 0) {
            place = g;
            break;
        }
        place = !g->trusted && (!place || g->since < place->since) ? g : place;
    }
    uint8_t own[TN__PLACE];
    if (!place || !tn__net_place(fd, false, own)) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    drop_guest(j, place);
    *place = (guest){.fd = -1, .since = tn__now()};
    if (!tn__session_begin(&place->session, &j->hub, own)) {
        close(fd);
        return;
    }
    tn__net_options(fd);
    place->fd = fd;
}

/* The greeting is short: a socket that does not take it at once is not a rank's. */
static bool answer_guest(guest *g) {
    struct iovec parts[2];
    for (int n; (n = tn__session_output(&g->session, parts)) > 0;) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(g->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) {
            return false;
        }
        tn__session_sent(&g->session, (size_t)sent);
    }
    return g->session.state != TN__SESSION_CLOSE;
}

/* It says which rank it is, and is told that it may stay: until then it must dial again if it was
 * dropped for strangers. */
static bool admit_guest(joining *j, guest *g, const tn__rpc_frame *f) {
    tn_rpc *r = j->rpc;
    uint64_t rank = f->head.number;
    if (f->head.kind != TN__RPC_RANK || rank <= (uint64_t)r->rank || rank >= (uint64_t)r->ranks ||
        r->peers[rank].fd >= 0) {
        return false;
    }
    uint8_t head[TN__RPC_HEAD];
    tn__rpc_head_write(head, &(tn__rpc_head){.kind = TN__RPC_RANK, .number = (uint64_t)r->rank});
    if (send(g->fd, head, sizeof(head), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(head)) {
        return false;
    }
    r->peers[rank].fd = g->fd;
    g->fd = -1;
    tn__session_end(&g->session);
    j->missing--;
    return true;
}

/* Takes what has arrived of the hello and the proof, and no more than that: what follows is
 * frames. */
static bool hear_stranger(guest *g) {
    uint8_t data[TN__HELLO + TN__DIGEST];
    size_t want = (g->session.state == TN__SESSION_HELLO ? (size_t)TN__HELLO : TN__DIGEST) -
                  g->session.head_bytes;
    ssize_t got = recv(g->fd, data, want, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (got <= 0 || !tn__session_take(&g->session, data, (size_t)got, tn__now())) {
        return false;
    }
    g->trusted = tn__session_trusted(&g->session);
    return answer_guest(g);
}

static bool hear_guest(joining *j, guest *g) {
    size_t most;
    tn__rpc_frame *f;
    if (!g->trusted) {
        return hear_stranger(g);
    }
    void *room = tn__reader_room(&g->reader, &most);
    ssize_t got = recv(g->fd, room, most, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (got <= 0 || !tn__reader_took(&g->reader, (size_t)got, &f)) {
        return false;
    }
    bool fine = !f || admit_guest(j, g, f);
    free(f);
    return fine;
}

/* One turn; false at the deadline. */
static bool receive_guests(joining *j) {
    struct pollfd polled[GUESTS_MOST + 1] = {{.fd = j->listener, .events = POLLIN}};
    double now = tn__now();
    for (int i = 0; i < GUESTS_MOST; i++) {
        guest *g = &j->guests[i];
        if (g->fd >= 0 && !g->trusted && now > g->since + GUEST_SECONDS) {
            drop_guest(j, g);
        }
        polled[i + 1] = (struct pollfd){.fd = g->fd, .events = POLLIN};
    }
    int left = tn__milliseconds_left(j->meet.deadline);
    poll(polled, GUESTS_MOST + 1, left < TURN ? left : TURN);
    for (int i = 0; i < GUESTS_MOST; i++) {
        guest *g = &j->guests[i];
        if (g->fd >= 0 && polled[i + 1].revents && !hear_guest(j, g)) {
            drop_guest(j, g);
        }
    }
    if (polled[0].revents) {
        accept_guest(j);
    }
    return left > 0;
}

/* "rank 2, 5" of those that have not connected. */
static void name_missing(const joining *j, char *why) {
    size_t length = 0;
    for (int r = j->rpc->rank + 1; r < j->rpc->ranks && length < TN_ENGINE_WHY; r++) {
        if (j->rpc->peers[r].fd < 0) {
            length += (size_t)snprintf(why + length, TN_ENGINE_WHY - length, "%s%d",
                                       length ? ", " : "no connection from rank ", r);
        }
    }
}

/* ---- Those who end --------------------------------------------------------------------------- */

/* Of those that have not connected: who has may have done all that it wants to do. All are named,
 * since whoever notices one ends as well. */
static tn_status check_others(void *user, bool all, char *why) {
    joining *j = user;
    size_t length = 0;
    double until = fmin(tn__now() + STORE_SECONDS, j->meet.deadline);
    for (int i = 0; i < j->rpc->ranks && length < TN_ENGINE_WHY; i++) {
        bool waits = i != j->rpc->rank && j->rpc->peers[i].fd < 0;
        if (waits && tn__watch_ended(j->meet.store, i, &j->others[i], until)) {
            length += (size_t)snprintf(why + length, TN_ENGINE_WHY - length, "%s%d",
                                       length ? ", " : "ended before it connected: rank ", i);
        }
    }
    return length ? TN_EPEER : TN_OK;
}

/* ---- Those below ----------------------------------------------------------------------------- */

/* Says which rank this is, and waits until the other one, which knows the secret, has taken it. */
static bool enter_rank(joining *j, int to, int fd, char *reason) {
    uint8_t head[TN__RPC_HEAD];
    tn__rpc_head h = {.kind = TN__RPC_RANK, .number = (uint64_t)j->rpc->rank};
    tn__rpc_head_write(head, &h);
    struct iovec part = {head, sizeof(head)};
    int error = tn__net_send(fd, &part, 1, j->meet.deadline);
    error = error ? error : tn__net_receive(fd, head, sizeof(head), j->meet.deadline);
    if (error) {
        snprintf(reason, TN_STORE_WHY, "%s", strerror(error));
        return false;
    }
    if (!tn__rpc_head_read(head, &h) || h.kind != TN__RPC_RANK || h.number != (uint64_t)to) {
        snprintf(reason, TN_STORE_WHY, "what it sends is out of place");
        return false;
    }
    return true;
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
            break;
        }
        if (dialed == TN__DIAL_OURS) {
            close(fd);
        }
        bool again =
            dialed == TN__DIAL_SILENT || dialed == TN__DIAL_NO_HOST || dialed == TN__DIAL_OURS;
        if (!again || !tn__rest_until(&pause, LONGEST_PAUSE, j->meet.deadline)) {
            snprintf(why, TN_ENGINE_WHY, "rank %d: %s", to, reason);
            return false;
        }
    }
    j->rpc->peers[to].fd = fd;
    return true;
}

/* ---- All ------------------------------------------------------------------------------------- */

static bool listen_here(joining *j, char *mine, char *why) {
    char address[TN__ADDRESS - 8];
    if (!tn__gloo_address(&j->meet, mine, why)) {
        return false;
    }
    snprintf(address, sizeof(address), "%s", mine);
    j->listener = tn__net_listen(address, &j->port, why);
    snprintf(mine, TN__ADDRESS, "%s %d", address, j->port);
    return j->listener >= 0;
}

static bool connect_ranks(joining *j, char *why) {
    char mine[TN__ADDRESS] = "";
    int ranks = j->rpc->ranks;
    tn_store_value *values = tn__calloc((size_t)ranks, sizeof(*values));
    if (!values) {
        snprintf(why, TN_ENGINE_WHY, "no memory for %d ranks", ranks);
        return false;
    }
    bool fine = make_secret(j, why) && listen_here(j, mine, why) &&
                tn__gloo_meet(&j->meet, "at", mine, strlen(mine) + 1, values, why);
    for (int to = 0; fine && to < j->rpc->rank; to++) {
        fine = dial_rank(j, to, &values[to], why);
    }
    while (fine && j->missing > 0) {
        bool late = !receive_guests(j);
        if (late) {
            name_missing(j, why);
        }
        fine = !late && check_others(j, true, why) == TN_OK;
    }
    tn__gloo_forget(values, ranks);
    free(values);
    return fine;
}

/* The part of the store that belongs to this rpc; NULL after raising. */
static tn_store *own_store(const tn_rpc *r) {
    char prefix[32];
    snprintf(prefix, sizeof(prefix), "rpc/%d", r->number);
    return tn_prefix_store(r->store, prefix);
}

bool tn__peers_announce(tn_rpc *r, double deadline) {
    char why[TN_STORE_WHY] = "";
    if (r->ranks == 1) {
        return true;
    }
    tn_store *store = own_store(r);
    tn_status status = store ? tn__watch_announce(store, r->rank, deadline, why) : TN_OK;
    tn_store_free(store);
    if (status != TN_OK) {
        tn__raise(status, "rpc_new", "rank %d of %d: the store: %s", r->rank, r->ranks, why);
    }
    return !tn__pending();
}

bool tn__peers_join(tn_rpc *r, double deadline) {
    char why[TN_ENGINE_WHY] = "";
    if (r->ranks == 1) {
        return true;
    }
    joining *j = tn__calloc_for(1, sizeof(*j), "rpc_start");
    tn__watched *others = j ? tn__calloc_for((size_t)r->ranks, sizeof(*others), "rpc_start") : NULL;
    tn_store *store = others ? own_store(r) : NULL;
    if (!store) {
        free(others);
        free(j);
        return false;
    }
    j->rpc = r;
    j->others = others;
    j->listener = -1;
    j->missing = r->ranks - 1 - r->rank;
    j->meet = (tn_engine_options){.store = store,
                                  .rank = r->rank,
                                  .ranks = r->ranks,
                                  .deadline = deadline,
                                  .timeout = r->options.timeout,
                                  .interface = r->interface,
                                  .check = check_others,
                                  .check_user = j};
    j->hub = (tn__store_hub){.token = j->secret};
    for (int i = 0; i < GUESTS_MOST; i++) {
        j->guests[i].fd = -1;
    }
    bool fine = connect_ranks(j, why);
    for (int i = 0; i < GUESTS_MOST; i++) {
        drop_guest(j, &j->guests[i]);
    }
    if (j->listener >= 0) {
        close(j->listener);
    }
    for (int i = 0; i < r->ranks; i++) {
        tn__watch_end(&others[i]);
    }
    tn_store_free(store);
    free(others);
    free(j);
    if (!fine) {
        tn__raise(TN_EPEER, "rpc_start", "rank %d of %d: %s", r->rank, r->ranks, why);
    }
    return fine;
}
