/* The connections to the other ranks, once both sides have shown the secret; and the thread that
 * reads them. */
#ifndef TERN_DISTRIBUTED_RPC_CONNECTIONS_H
#define TERN_DISTRIBUTED_RPC_CONNECTIONS_H

#include "distributed/rpc/frame.h"
#include "tern/sys/store.h"

#include <pthread.h>

typedef struct tn__connection {
    int fd; /* -1: this rank itself, or not connected */
    pthread_mutex_t lock;
    tn__rpc_frame *first, *last; /* to be sent; last is set where there is a first */
    size_t sent;                 /* of first */
    bool full;                   /* the thread waits until the socket takes more */
    bool closed;                 /* nothing more is sent */

    tn__rpc_reader reader; /* of the thread */
} tn__connection;

typedef struct tn__connections {
    int rank, ranks;
    uint64_t limit;       /* bytes of a body that is received */
    tn__connection *list; /* [ranks] */
    int epoll, wake;      /* -1: none */
    bool has_thread;
    pthread_t thread;

    void (*receive)(void *user, int from, tn__rpc_frame *f); /* takes it over */
    void (*lost)(void *user, int rank, const char *why);     /* the end of a connection */
    void *user;
} tn__connections;

/* c has rank, ranks, limit and functions. False after raising. */
bool tn__connections_init(tn__connections *c);
void tn__connections_finish(tn__connections *c);

/* Connects all ranks, which find each other in the store (join.c). False after raising. */
bool tn__connections_join(tn__connections *c, tn_store *store, const char *interface,
                          double timeout);
/* Starts the thread. False after raising. */
bool tn__connections_start(tn__connections *c);
/* Ends it and closes all; the other ranks see that. */
void tn__connections_stop(tn__connections *c);

/* Sends f, or passes it to this rank itself; takes it over. A failure is noticed by the thread. */
void tn__connections_send(tn__connections *c, int to, tn__rpc_frame *f);
/* Waits until nothing is queued for a rank that is there; false at the deadline. */
bool tn__connections_drain(tn__connections *c, double deadline);

#endif
