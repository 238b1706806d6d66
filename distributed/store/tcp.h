/* What store.h does not offer: the handshake of a TCP store's two ends, also for other connections
 * (rpc/join.c); and our own server's keys and number of clients. */
#ifndef TERN_DISTRIBUTED_STORE_TCP_H
#define TERN_DISTRIBUTED_STORE_TCP_H

#include "distributed/store/store.h"

typedef enum tn__dialed {
    TN__DIAL_OURS,      /* a server that knows the token, and is where it was dialled */
    TN__DIAL_REFUSED,   /* no one listens */
    TN__DIAL_NO_HOST,   /* the host is unreachable or unknown */
    TN__DIAL_SILENT,    /* no answer, or not in time */
    TN__DIAL_STRANGER,  /* an answer, but not from a Tern store, or one of another version */
    TN__DIAL_OTHER_JOB, /* a Tern store that does not know the token */
    TN__DIAL_RELAYED, /* a store that knows the token, but is at another address than was dialled */
    TN__DIAL_FAILED   /* an error on this side */
} tn__dialed;

/* Connects to host:port; both sides show that they know the token. One attempt at each of the
 * host's addresses, until one is ours; then *fd is the connection, else -1. */
TN_API tn__dialed tn__tcp_dial(const char *host, int port, const char *token, double deadline,
                               int *fd, char *why);

/* The other end of that, of a connection that was accepted. False: a stranger, or not in time. */
bool tn__tcp_greet(int fd, const char *token, double deadline);

/* What answers at host:port. One attempt at each of the host's addresses, until one is ours. */
TN_API tn__dialed tn__tcp_probe(const char *host, int port, const char *token, double deadline,
                                char *why);

/* Sets a key of a server in this process: without a connection, and without waiting. Raises
 * TN_ENOMEM. */
TN_API tn_status tn__store_server_set(tn_store_server *s, const char *key, const char *text);

/* How many connections of clients that know the token are open: a process that uses the store has
 * at least one, and none after it has ended, for whatever reason. 0 for NULL. */
TN_API int tn__store_server_members(const tn_store_server *s);

#endif
