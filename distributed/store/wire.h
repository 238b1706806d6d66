/* The messages between client and server of the TCP store. Numbers are little-endian.
 *
 *     client                                     server
 *     hello  "TERN" version 0 nonce[16]     ->
 *                                           <-   hello, place[18], proof[32]
 *     proof[32]                             ->
 *     request                               ->
 *                                           <-   reply
 *     …
 *
 * A proof is HMAC-SHA256(token, "client" or "server", client's nonce, server's nonce, place): each
 * side shows that it knows the token, and neither sends it. The place is the address and port of
 * the server's end of this connection: the server takes its own, the client the one that it has
 * dialled. So no relay can pass messages between two others and take over the session: a server's
 * proof is worth nothing at another address. The server is the first to show that it knows the
 * token, and a client sends its proof only to such a server. The place in the server's answer is
 * for the client's message when it refuses.
 *
 * A server answers any hello with a proof, so tokens must be too long to be guessed (hex digits of
 * 16 random bytes are). What follows the proofs is neither encrypted nor signed: an attacker who
 * can change the packets between two hosts is not kept out.
 *
 * Until the proof nothing has a length of the sender's choice. After it a client sends one request
 * at a time and waits for the reply. The first 24 bytes of both sides are the same in every
 * version, and a server that gets another version sends no more than those.
 *
 *     request  u8 kind, u8 key length, u16 0, u32 length of the value, u32 of the expected one,
 *              i64 number, u64 microseconds; key; value; expected value (tn_store_call)
 *     reply    u32 status, u32 bytes, i64 number; value, or the reason for a failure
 */
#ifndef TERN_DISTRIBUTED_STORE_WIRE_H
#define TERN_DISTRIBUTED_STORE_WIRE_H

#include "tern/sys/store.h"

enum {
    TN__WIRE_VERSION = 3,
    TN__NONCE = 16,
    TN__PLACE = 16 + 2, /* an address and a port: tn__net_place */
    TN__DIGEST = 32,    /* HMAC-SHA-256 */
    TN__HELLO = 4 + 2 + 2 + TN__NONCE,
    TN__GREETING = TN__HELLO + TN__PLACE + TN__DIGEST, /* what the server says first */
    TN__REQUEST_HEAD = 28,
    TN__REPLY_HEAD = 16
};

typedef struct tn__request {
    tn_store_kind kind;
    uint32_t key_bytes, bytes, expected_bytes;
    int64_t number;
    uint64_t microseconds; /* how long GET waits */
} tn__request;

typedef struct tn__reply {
    tn_status status;
    uint32_t bytes;
    int64_t number;
} tn__reply;

TN_API void tn__hello_write(uint8_t to[TN__HELLO], const uint8_t nonce[TN__NONCE]);
/* False: not a Tern store. *version is the other side's. */
TN_API bool tn__hello_read(const uint8_t from[TN__HELLO], uint8_t nonce[TN__NONCE], int *version);

/* What both sides know about one connection, and what a proof covers. */
typedef struct tn__bond {
    uint8_t client_nonce[TN__NONCE], server_nonce[TN__NONCE];
    uint8_t place[TN__PLACE]; /* of the server's end */
} tn__bond;
bool tn__bond_begin(tn__bond *bond); /* with a server's nonce; false: no random numbers */
TN_API void tn__proof(const char *token, const char *role, const tn__bond *bond,
                      uint8_t proof[TN__DIGEST]);
/* Whether they are equal, in a time that does not depend on where they differ. */
TN_API bool tn__proof_equal(const uint8_t a[TN__DIGEST], const uint8_t b[TN__DIGEST]);

/* A server's answer to a hello. Returns its length: that of a hello, to a client of another
 * version; 0: it is no hello. */
size_t tn__greeting_write(uint8_t to[TN__GREETING], const char *token, tn__bond *bond,
                          const uint8_t hello[TN__HELLO]);
bool tn__client_proved(const char *token, const tn__bond *bond, const uint8_t said[TN__DIGEST]);

/* Readers return false if it is malformed: an unknown kind or status, lengths beyond the limits. */
TN_API void tn__request_write(uint8_t to[TN__REQUEST_HEAD], const tn__request *r);
TN_API bool tn__request_read(const uint8_t from[TN__REQUEST_HEAD], tn__request *r);
TN_API void tn__reply_write(uint8_t to[TN__REPLY_HEAD], const tn__reply *r);
TN_API bool tn__reply_read(const uint8_t from[TN__REPLY_HEAD], tn__reply *r);

#endif
