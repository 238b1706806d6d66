/* The connections to the other ranks, once both sides have shown the secret: each has a thread that
 * reads and one that writes, so no one else waits for a slow rank. */
#ifndef TERN_DISTRIBUTED_RPC_CONNECTIONS_H
#define TERN_DISTRIBUTED_RPC_CONNECTIONS_H

#include "distributed/rpc/frame.h"
#include "tern/sys/store.h"

#include <pthread.h>

typedef struct tn__connections tn__connections;

typedef struct tn__connection {
    tn__connections *all;
    int rank, fd; /* fd -1: this rank itself, or not connected */
    pthread_t reader, writer;
    int threads; /* that have been started: the reader, then the writer */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    tn__rpc_frame *first, *last; /* to be sent; last is set where there is a first */
    bool closed;                 /* nothing more is sent */
} tn__connection;

struct tn__connections {
    int rank, ranks;
    uint64_t limit;       /* bytes of a body */
    tn__connection *list; /* [ranks] */

    /* A frame of rank `from`, which is taken over. False: it is out of place, which ends the
     * connection. */
    bool (*receive)(void *user, int from, tn__rpc_frame *f);
    /* The end of a connection, for good. */
    void (*lost)(void *user, int rank, const char *why);
    void *user;
};

/* c has all but the list. False after raising. */
bool tn__connections_init(tn__connections *c);
void tn__connections_finish(tn__connections *c);

/* Connects all ranks, which find each other in the store (join.c). False after raising. */
bool tn__connections_join(tn__connections *c, tn_store *store, const char *interface,
                          double timeout);
/* Starts the threads. False after raising. */
bool tn__connections_start(tn__connections *c);
/* Closes all and ends the threads; the other ranks see that. */
void tn__connections_stop(tn__connections *c);

/* Sends f, or passes it to this rank itself; takes it over. A failure is noticed by the reader. */
void tn__connections_send(tn__connections *c, int to, tn__rpc_frame *f);
/* Waits until nothing is queued for a rank that is there; false at the deadline. */
bool tn__connections_drain(tn__connections *c, double deadline);

#endif
