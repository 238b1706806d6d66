/* The beginning of a connection, before anything else is said: both ends show that they know the
 * token (wire.h). */
#define _GNU_SOURCE
#include "distributed/store/net.h"
#include "distributed/store/tcp.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define HANDSHAKE_SECONDS 5.0 /* the server's own limit */

/* ---- The server ------------------------------------------------------------------------------ */

bool tn__tcp_greet(int fd, const char *token, double deadline) {
    uint8_t hello[TN__HELLO], greeting[TN__GREETING], said[TN__DIGEST];
    tn__bond bond;
    if (!tn__bond_begin(&bond) || !tn__net_place(fd, false, bond.place) ||
        tn__net_receive(fd, hello, sizeof(hello), deadline)) {
        return false;
    }
    size_t bytes = tn__greeting_write(greeting, token, &bond, hello);
    struct iovec part = {greeting, bytes};
    return bytes && tn__net_send(fd, &part, 1, deadline) == 0 && bytes == TN__GREETING &&
           tn__net_receive(fd, said, sizeof(said), deadline) == 0 &&
           tn__client_proved(token, &bond, said);
}

/* ---- The client ------------------------------------------------------------------------------ */

static int exchange_bytes(int fd, const void *out, size_t out_bytes, void *in, size_t in_bytes,
                          double deadline) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)out, .iov_len = out_bytes};
    int error = tn__net_send(fd, &part, 1, deadline);
    return error ? error : tn__net_receive(fd, in, in_bytes, deadline);
}

/* Checks the server's proof for this connection. */
static tn__dialed check_server(const char *token, tn__bond *bond, const uint8_t place[TN__PLACE],
                               const uint8_t said[TN__DIGEST], char *why) {
    uint8_t proof[TN__DIGEST];
    char here[TN__NET_TEXT], there[TN__NET_TEXT];
    tn__proof(token, "server", bond, proof);
    if (tn__proof_equal(proof, said)) { return TN__DIAL_OURS; }
    tn__net_text(bond->place, here);
    tn__net_text(place, there);
    memcpy(bond->place, place, TN__PLACE); /* where it claims to be */
    tn__proof(token, "server", bond, proof);
    if (!tn__proof_equal(proof, said)) {
        tn__why(why, TN_EPEER, "it is the store of another job: it does not know this job's token");
        return TN__DIAL_OTHER_JOB;
    }
    tn__why(
        why, TN_EPEER,
        "this job's store is at %s: what answers at %s passes it on (relay, NAT, forwarded port) "
        "and is refused: dial its host's own address",
        there, here);
    return TN__DIAL_RELAYED;
}

/* The server shows that it knows the token, and then this side. The reason lacks the place. */
static tn__dialed shake_hands(int fd, const char *token, double deadline, char *why) {
    uint8_t hello[TN__HELLO], rest[TN__GREETING - TN__HELLO], proof[TN__DIGEST];
    tn__bond bond;
    int version, error;
    if (getrandom(bond.client_nonce, TN__NONCE, 0) != TN__NONCE ||
        !tn__net_place(fd, true, bond.place)) {
        tn__why(why, TN_EIO, "a connection could not begin: %s", strerror(errno));
        return TN__DIAL_FAILED;
    }
    tn__hello_write(hello, bond.client_nonce);
    if ((error = exchange_bytes(fd, hello, sizeof(hello), hello, sizeof(hello), deadline))) {
        tn__why(why, TN_EPEER, "no greeting: %s", tn__net_error(error));
        return TN__DIAL_SILENT;
    }
    if (!tn__hello_read(hello, bond.server_nonce, &version)) {
        tn__why(why, TN_EPEER, "what answers is not a Tern store");
        return TN__DIAL_STRANGER;
    }
    if (version != TN__WIRE_VERSION) {
        tn__why(why, TN_EPEER, "it speaks version %d of the store's protocol, this process %d",
                version, TN__WIRE_VERSION);
        return TN__DIAL_STRANGER;
    }
    if ((error = tn__net_receive(fd, rest, sizeof(rest), deadline))) {
        tn__why(why, TN_EPEER, "it does not show that it knows the token: %s",
                tn__net_error(error));
        return TN__DIAL_SILENT;
    }
    tn__dialed dialed = check_server(token, &bond, rest, rest + TN__PLACE, why);
    if (dialed != TN__DIAL_OURS) { return dialed; }
    tn__proof(token, "client", &bond, proof);
    struct iovec part = {.iov_base = proof, .iov_len = sizeof(proof)};
    if ((error = tn__net_send(fd, &part, 1, deadline))) {
        tn__why(why, TN_EPEER, "it does not take the proof: %s", tn__net_error(error));
        return TN__DIAL_SILENT;
    }
    return TN__DIAL_OURS;
}

/* One attempt at one address. *fd is a joined connection when the answer is TN__DIAL_OURS. */
static tn__dialed dial_address(const struct addrinfo *at, const char *token, double deadline,
                               int *fd, char *why) {
    int error;
    *fd = tn__net_connect(at, deadline, &error);
    if (*fd < 0) {
        tn__why(why, TN_EPEER, "%s", strerror(error));
        return error == ECONNREFUSED ? TN__DIAL_REFUSED
               : error == ETIMEDOUT  ? TN__DIAL_SILENT
                                     : TN__DIAL_NO_HOST;
    }
    tn__dialed dialed = shake_hands(*fd, token, fmin(deadline, tn__now() + HANDSHAKE_SECONDS), why);
    if (dialed != TN__DIAL_OURS) {
        close(*fd);
        *fd = -1;
    }
    return dialed;
}

/* One attempt at each of the host's addresses, which share the time: a stranger at one of them does
 * not hide the next. Of answers that are not ours, the most informative is kept. */
tn__dialed tn__tcp_dial(const char *host, int port, const char *token, double deadline, int *fd,
                        char *why) {
    const char *unknown;
    struct addrinfo *list = tn__net_resolve(host, port, &unknown);
    tn__dialed best = TN__DIAL_NO_HOST;
    int left = 0;
    *fd = -1;
    for (struct addrinfo *at = list; at; at = at->ai_next) {
        left++;
    }
    for (struct addrinfo *at = list; at && *fd < 0; at = at->ai_next, left--) {
        char reason[TN_STORE_WHY];
        double now = tn__now(), share = fmax(deadline - now, 0) / left;
        tn__dialed dialed = dial_address(at, token, now + share, fd, reason);
        if (at == list || dialed == TN__DIAL_OURS || best == TN__DIAL_NO_HOST ||
            (best == TN__DIAL_REFUSED && dialed != TN__DIAL_NO_HOST)) {
            best = dialed;
            tn__why(why, TN_EPEER, "%.60s:%d: %.180s", host, port, reason);
        }
    }
    if (list) {
        freeaddrinfo(list);
    } else {
        tn__why(why, TN_EPEER, "unknown host %.100s: %s", host, unknown);
    }
    return best;
}

tn__dialed tn__tcp_probe(const char *host, int port, const char *token, double deadline,
                         char *why) {
    int fd;
    tn__dialed dialed = tn__tcp_dial(host, port, token, deadline, &fd, why);
    if (fd >= 0) { close(fd); }
    return dialed;
}
