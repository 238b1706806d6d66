/* The input is what clients say to the server of the TCP store. Whatever it is: the limits hold,
 * every reply is valid, and when all clients have gone nothing is left.
 *
 *     input    pieces: u8 who and what, u8 length, bytes
 *     who      bits 0-1: one of four clients. The first begins as a stranger,
 *              the others have shown the token.
 *     what     bits 2-3, before its bytes are taken: 1: a second passes.
 *              2: the client goes, and another comes.
 *              3: the client shows the token (if that is due), and its bytes come after it.
 */
#include "tests/fuzz/bytes.h"

#include "distributed/store/session.h"

#include <string.h>

enum { CLIENTS = 4, TABLE = 2048, BUFFERS = 1024 };

typedef struct target {
    tn__store_hub hub;
    tn__session clients[CLIENTS];
    double now;
} target;

static void begin_session(target *t, int who) {
    const uint8_t place[TN__PLACE] = {[15] = 1, [16] = 115, [17] = 60}; /* [::1]:29500 */
    must_hold(tn__session_begin(&t->clients[who], &t->hub, place), "no random numbers");
    if (who > 0) { t->clients[who].state = TN__SESSION_REQUEST; }
}

static void renew_session(target *t, int who) {
    tn__session_end(&t->clients[who]);
    begin_session(t, who);
}

/* A reply is complete and states its length; before the proof there is only the server's greeting,
 * or its hello to another version. */
static void check_output(const tn__session *s, const struct iovec *parts, int n) {
    tn__reply r;
    if (tn__session_trusted(s) && parts[0].iov_len == TN__REPLY_HEAD) {
        must_hold(tn__reply_read(parts[0].iov_base, &r), "an invalid reply");
        must_hold(r.bytes == (n == 2 ? parts[1].iov_len : 0), "a reply of the wrong length");
    } else {
        bool greets = s->state == TN__SESSION_PROOF && parts[0].iov_len == TN__GREETING;
        bool refuses = s->state == TN__SESSION_CLOSE && parts[0].iov_len == TN__HELLO;
        must_hold(n == 1 && (greets || refuses), "a stranger is told more than the greeting");
    }
}

static void send_all(target *t) {
    for (tn__session *s; (s = tn__store_hub_answered(&t->hub));) {
        struct iovec parts[2];
        int n = tn__session_output(s, parts);
        must_hold(n > 0, "answered, with nothing to send");
        check_output(s, parts, n);
        tn__session_sent(s, 1);
        for (; (n = tn__session_output(s, parts)) > 0;) {
            tn__session_sent(s, parts[0].iov_len);
        }
        if (s->state == TN__SESSION_CLOSE) { renew_session(t, (int)(s - t->clients)); }
    }
}

static void take_bytes(target *t, int who, const void *data, size_t bytes) {
    tn__session *s = &t->clients[who];
    if (!tn__session_take(s, data, bytes, t->now)) {
        must_hold(s->fault != NULL && s->state == TN__SESSION_CLOSE, "dropped without a reason");
        renew_session(t, who);
    }
    send_all(t);
    must_hold(t->hub.buffered <= BUFFERS, "more buffered than is allowed");
    must_hold(t->hub.table.bytes <= TABLE, "more stored than is allowed");
}

static void prove_token(target *t, int who) {
    tn__session *s = &t->clients[who];
    if (s->state == TN__SESSION_PROOF && s->head_bytes == 0) {
        uint8_t proof[TN__DIGEST];
        tn__proof(t->hub.token, "client", &s->bond, proof);
        take_bytes(t, who, proof, sizeof(proof));
        must_hold(tn__session_trusted(s), "the token is not accepted");
    }
}

FUZZ(store, NULL) {
    target t = {.hub = {.token = "token", .table.limit = TABLE, .buffered_limit = BUFFERS}};
    for (int who = 0; who < CLIENTS; who++) {
        begin_session(&t, who);
    }
    while (bytes >= 2) {
        int who = data[0] & 3, what = data[0] >> 2 & 3;
        size_t length = data[1] < bytes - 2 ? data[1] : bytes - 2;
        t.now += what == 1;
        for (int i = 0; what == 1 && i < CLIENTS; i++) {
            tn__session_expire(&t.clients[i], t.now);
        }
        if (what == 2) {
            renew_session(&t, who);
        } else if (what == 3) {
            prove_token(&t, who);
        }
        send_all(&t);
        take_bytes(&t, who, data + 2, length);
        data += 2 + length;
        bytes -= 2 + length;
    }
    for (int who = 0; who < CLIENTS; who++) {
        tn__session_end(&t.clients[who]);
    }
    must_hold(t.hub.buffered == 0 && !t.hub.waiting && !t.hub.answered,
              "something is left in the buffers");
    tn__store_hub_clear(&t.hub);
    must_hold(t.hub.table.bytes == 0 && t.hub.table.count == 0, "something is left in the table");
}
