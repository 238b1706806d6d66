/* Calls between ranks: how the files fit together.
 *
 *     frame.c         the bytes between two ranks, without sockets
 *     values.c        tensors as the body of a frame
 *     rpc.c           what the next ones stand on: making, the lock, users, functions by name
 *     connections.c   a connection to each rank, and the thread that reads them
 *     call.c          calling and waiting
 *     grad.c          a call that is a node of the graph here, and the graph that it keeps there
 *     serve.c         calls that have arrived, and the threads that answer them
 *     join.c          starting: the ranks find each other and show that they know the secret;
 *                     shutting down; what becomes of a frame that arrives
 *
 * Each two ranks have one connection, over which both call. No thread waits for a slow rank except
 * in tn_rpc_wait, and in tn_rpc_call where that rank has too much to answer already; both have a
 * deadline. The connections' thread only sorts frames: replies go to their futures, calls to the
 * queue. The first failure of a connection is the end of that rank, for good.
 *
 * No frame is sent, and no user's code runs, with the lock held; a connection sends under its own.
 */
#ifndef TERN_DISTRIBUTED_RPC_RPC_H
#define TERN_DISTRIBUTED_RPC_RPC_H

#include "distributed/rpc/frame.h"
#include "tern/rpc.h"
#include "tern/sys/store.h"

#include <pthread.h>

/* What other ranks can call. */
typedef struct tn__function {
    struct tn__function *next;
    tn_rpc_function f;
    void *user;
    char name[];
} tn__function;

/* A call that this rank has made. */
struct tn_future {
    tn_future *next; /* of those that wait for the same rank */
    tn_rpc *rpc;     /* one reference */
    uint64_t number; /* 0: it was not sent */
    int to;
    double begun, deadline;
    bool done;
    tn__rpc_frame *reply; /* NULL: none has come in time, or will */
    char name[];          /* of the function */
};

/* The graph of a call by tn_rpc_forward: the leaves that its inputs became, and the results. */
typedef struct tn__graph {
    struct tn__graph *next;
    uint64_t number; /* of the caller's call */
    int refs;        /* of the list, and of a backward */
    tn_values in, out;
} tn__graph;

/* A rank, this one too, as this one sees it. */
typedef struct tn__peer {
    int fd;                  /* of the connection; -1: this rank itself, or none */
    tn__rpc_reader reader;   /* of the connections' thread */
    pthread_mutex_t sending; /* of: */
    tn__rpc_queue out;
    size_t sent; /* of the first in it */
    bool full;   /* the thread waits until the socket takes more */
    bool closed; /* nothing more is sent */

    tn_future *futures, **end; /* of calls of it that wait, the oldest first */
    uint64_t unanswered;       /* bytes of calls of it */
    tn__graph *graphs; /* of its calls, until their backward, or until it says that none comes */
    bool ended;        /* it waits for nothing more (tn_rpc_shutdown) */
    bool gone;
    char why[512]; /* it is gone: does not change then */
} tn__peer;

struct tn_rpc {
    int32_t refs; /* atomic: of the program, futures and nodes */
    uint32_t process;
    tn_rpc_options options;
    int rank, ranks;
    tn_store *store; /* its own part of the group's; NULL: one rank */
    char interface[64];
    bool started;
    tn__peer *peers; /* [ranks] */
    /* What the connections report: a frame, which is taken over, and that a rank is gone. */
    void (*arrived)(tn_rpc *r, int from, tn__rpc_frame *f);
    void (*lost)(tn_rpc *r, int rank, const char *why);
    int epoll, wake; /* of the connections' thread; -1: none */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;   /* of all that follows, and of the second part of peers */
    pthread_cond_t changed; /* something that a thread waits for, perhaps */
    tn__function *functions;
    const tn__peer *first_lost;

    uint64_t last_number; /* of this rank's calls */
    int waiting;          /* of its futures */

    bool turn_taken; /* a backward adds to the gradients of this rank's parameters */

    tn__rpc_queue calls;   /* to be answered */
    pthread_cond_t queued; /* there is one that may run */
    pthread_t *threads;    /* [options.threads_most] */
    int thread_count, idle, running, blocked;
    bool stopped;
};

/* ---- rpc.c ----------------------------------------------------------------------------------- */

/* Whether r may be used now; raises otherwise. */
bool tn__rpc_usable(tn_rpc *r, const char *operation);
tn_rpc *tn__rpc_keep(tn_rpc *r);
void tn__rpc_release(tn_rpc *r);
/* Under the lock: waits for any change; false at the deadline. */
bool tn__rpc_await(tn_rpc *r, double deadline);
void tn__rpc_unlock(tn_rpc *r); /* after a change */
/* Under the lock. NULL: there is none. The name has no 0 at its end. */
const tn__function *tn__rpc_function(const tn_rpc *r, const char *name, size_t bytes);

/* What the thread that runs a function knows about it; the function's own calls see it. */
typedef struct tn__serving {
    tn_rpc *rpc;
    int caller;
    double deadline;
    /* Under the lock: the thread waits for another rank (1), and then no longer (-1). Meanwhile it
     * does not count as running, so that another may be started: functions that call back and forth
     * end as long as there are threads. */
    void (*block)(tn_rpc *r, int more);
} tn__serving;
extern _Thread_local const tn__serving *tn__served;
bool tn__rpc_inside(const tn_rpc *r); /* whether this thread runs one */

/* ---- connections.c --------------------------------------------------------------------------- */

/* Starts the thread that reads the connections. False after raising. */
bool tn__rpc_connect(tn_rpc *r);
/* Ends it and closes all; the other ranks see that. */
void tn__rpc_disconnect(tn_rpc *r);
/* Sends f, or passes it to this rank itself; takes it over. A failure is noticed by the thread. */
void tn__rpc_send(tn_rpc *r, int to, tn__rpc_frame *f);
/* Waits until nothing is queued for a rank that is there; false at the deadline. */
bool tn__rpc_drain(tn_rpc *r, double deadline);

/* ---- call.c ---------------------------------------------------------------------------------- */

/* tn_rpc_call for a head with kind, mask and subject; name NULL: a backward. */
tn_future *tn__rpc_issue(tn_rpc *r, tn__rpc_head h, int to, const char *name, const tn_values *in,
                         double timeout, const char *operation);
/* tn_rpc_wait; gives the reply, whose graph the caller then owns. NULL after an error. */
tn__rpc_frame *tn__rpc_finish(tn_future *f, tn_values *out, const char *operation);
/* A reply of rank `from`, for the future that waits for it; takes it over. */
void tn__rpc_reply(tn_rpc *r, int from, tn__rpc_frame *reply);
/* Makes of a reply the frame that says that its graph is not needed; so this needs no memory. */
tn__rpc_frame *tn__rpc_forget(tn__rpc_frame *reply);
/* A rank is gone, for good: all calls of it fail. */
void tn__rpc_lose(tn_rpc *r, int rank, const char *why);

/* ---- grad.c ---------------------------------------------------------------------------------- */

/* Keeps the graph of a call if a result requires a gradient, until its rank forgets it or is gone;
 * *mask: which. False after raising. */
bool tn__rpc_keep_graph(tn_rpc *r, const tn__rpc_frame *call, const tn_values *in,
                        const tn_values *out, uint8_t *mask);
/* The caller does not need the graph of this call any more; 0: of all its calls. */
void tn__rpc_forget_graph(tn_rpc *r, int caller, uint64_t number);
/* Runs backward through the graph that the call names, with the gradients of the results in its
 * mask; gives those of the inputs, and which in *mask. Nothing after raising. */
tn_values tn__rpc_backward(tn_rpc *r, const tn__rpc_frame *call, const tn_values *grads,
                           uint8_t *mask);

/* ---- serve.c --------------------------------------------------------------------------------- */

/* Starts the first thread, so that no call waits for one that cannot be started. False after
 * raising. */
bool tn__rpc_start_serving(tn_rpc *r);
void tn__rpc_stop_serving(tn_rpc *r); /* waits for what runs; drops what is queued */
/* A call of rank `from`, to be answered; takes it over. */
void tn__rpc_serve(tn_rpc *r, int from, tn__rpc_frame *call);

#endif
