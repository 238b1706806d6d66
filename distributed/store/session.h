/* The TCP server without its sockets: a hub has the keys and values, a session is one client's side
 * of the conversation (wire.h). Bytes go in, bytes to send come out, so that anything a stranger
 * might send can be tested and fuzzed without a network. Used by one thread. */
#ifndef TERN_DISTRIBUTED_STORE_SESSION_H
#define TERN_DISTRIBUTED_STORE_SESSION_H

#include "distributed/store/store.h"
#include "distributed/store/wire.h"

#include <sys/uio.h>

typedef struct tn__session tn__session;

typedef struct tn__store_hub {
    const char *token;
    tn__table table;
    size_t buffered; /* bytes of requests and replies in flight */
    size_t buffered_limit;
    tn__session *waiting;  /* sessions whose get waits for a key */
    tn__session *answered; /* sessions that have something to send since tn__store_hub_answered */
} tn__store_hub;

typedef enum tn__session_state {
    TN__SESSION_HELLO, /* a stranger until the proof */
    TN__SESSION_PROOF,
    TN__SESSION_REQUEST, /* the head of one */
    TN__SESSION_BODY,
    TN__SESSION_SKIP, /* the body of a request that is refused already */
    TN__SESSION_WAIT, /* for a key */
    TN__SESSION_CLOSE /* to be dropped when the output has been sent */
} tn__session_state;

struct tn__session {
    tn__store_hub *hub;
    tn__session_state state;
    tn__bond bond;

    uint8_t head[TN__DIGEST]; /* a hello, a proof or the head of a request */
    size_t head_bytes;
    tn__request request;
    uint8_t *body; /* [body_capacity]: key and values */
    size_t body_bytes, body_capacity;

    char key[TN_STORE_KEY + 1]; /* of the request */
    double since, deadline;     /* of a get that waits */

    uint8_t out_head[TN__GREETING];
    size_t out_head_bytes;
    void *out_body;
    size_t out_body_bytes;
    size_t out_sent; /* of both */

    tn__session *next_waiting, **waiting_link;
    tn__session *next_answered;
    bool is_answered;  /* is in the hub's list */
    const char *fault; /* why it is to be dropped */
};

/* `place`: the server's end of the connection. False when the system gives no random numbers. */
TN_API bool tn__session_begin(tn__session *s, tn__store_hub *hub, const uint8_t place[TN__PLACE]);
TN_API void tn__session_end(tn__session *s);

/* Takes what the client sent. False: drop the client (s->fault says why). */
TN_API bool tn__session_take(tn__session *s, const void *data, size_t bytes, double now);

/* Whether it has shown that it knows the token. */
TN_API bool tn__session_trusted(const tn__session *s);

/* A get whose time is up gets its answer. */
TN_API void tn__session_expire(tn__session *s, double now);

/* Puts what is to be sent into `parts`; returns how many parts. */
TN_API int tn__session_output(const tn__session *s, struct iovec parts[2]);
TN_API void tn__session_sent(tn__session *s, size_t bytes);

/* Does what a client might ask, at once; sessions that wait for the key get it. */
TN_API tn_status tn__store_hub_run(tn__store_hub *hub, tn_store_call *c);

/* Takes one session that has something new to send; NULL when there is none. */
TN_API tn__session *tn__store_hub_answered(tn__store_hub *hub);
TN_API void tn__store_hub_clear(tn__store_hub *hub);

#endif
