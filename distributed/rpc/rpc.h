/* Calls between ranks: how the files fit together. Each includes only what is above it.
 *
 *     frame.c         the bytes between two ranks, without sockets: heads, and a reader of them
 *     values.c        tensors as the body of a frame
 *     connections.c   a connection to each rank, and the thread that reads them
 *     join.c          starting: the ranks find each other and show that they know the secret
 *     futures.c       calls that wait for an answer, and how much each rank has been asked
 *     workers.c       calls that have arrived, and the threads that answer them
 *     graphs.c        what forwards have computed here, until their backward
 *     call.c          calling and waiting
 *     serve.c         answering
 *     forward.c       a call that is a node of the graph here
 *     rpc.c           life: making, starting, shutting down; what becomes of a frame that arrives;
 *                     what can be called, by name
 *
 * Each two ranks have one connection, over which both call. No thread waits for a slow rank except
 * in tn_rpc_wait, and in tn_rpc_call where that rank has too much to answer already; both have a
 * deadline. The connections' thread only sorts frames: replies go to their futures, calls to the
 * workers. The first failure of a connection is the end of that rank, for good.
 *
 * Each part has a lock of its own. No frame is sent, and no user's code runs, with any held, except
 * that a connection sends under its own.
 */
#ifndef TERN_DISTRIBUTED_RPC_RPC_H
#define TERN_DISTRIBUTED_RPC_RPC_H

#include "distributed/rpc/connections.h"
#include "distributed/rpc/futures.h"
#include "distributed/rpc/graphs.h"
#include "distributed/rpc/workers.h"

/* What other ranks can call. */
typedef struct tn__function {
    struct tn__function *next;
    tn_rpc_function f;
    void *user;
    char name[];
} tn__function;

struct tn_rpc {
    int32_t refs; /* atomic: of the program, futures and nodes */
    uint32_t process;
    tn_rpc_options options;
    int rank, ranks;
    tn_store *store; /* its own part of the group's; NULL: one rank */
    char interface[64];
    bool started;

    tn__connections connections;
    tn__futures futures;
    tn__workers workers;
    tn__graphs graphs;

    pthread_mutex_t lock; /* of: */
    tn__function *functions;
};

/* ---- rpc.c ----------------------------------------------------------------------------------- */

/* Whether r may be used now; raises otherwise. */
bool tn__rpc_usable(tn_rpc *r, const char *operation);
tn_rpc *tn__rpc_keep(tn_rpc *r);
void tn__rpc_release(tn_rpc *r);
/* NULL: there is none. The name has no 0 at its end. */
const tn__function *tn__rpc_function(tn_rpc *r, const char *name, size_t bytes);

/* ---- call.c ---------------------------------------------------------------------------------- */

/* What the thread that runs a function knows about it; the function's own calls see it. */
typedef struct tn__serving {
    tn_rpc *rpc;
    int caller;
    double deadline;
} tn__serving;
extern _Thread_local const tn__serving *tn__served;

/* tn_rpc_call for a head with kind, mask and subject; name NULL: a backward. */
tn_future *tn__rpc_issue(tn_rpc *r, tn__rpc_head h, int to, const char *name, const tn_values *in,
                         double timeout, const char *operation);
/* tn_rpc_wait; gives the reply, whose graph the caller then owns. NULL after an error. */
tn__rpc_frame *tn__rpc_finish(tn_future *f, tn_values *out, const char *operation);
/* A reply that no one takes: if it is a forward's, perhaps, its rank may forget the graph. */
void tn__rpc_drop_reply(tn_rpc *r, int from, tn__rpc_frame *reply);
/* Makes of a reply the frame that says so, which thus needs no memory. */
tn__rpc_frame *tn__rpc_forget(tn__rpc_frame *reply);

/* ---- serve.c --------------------------------------------------------------------------------- */

/* Answers a call, in a worker; takes it over. */
void tn__rpc_answer(void *rpc, tn__rpc_frame *call);

#endif
