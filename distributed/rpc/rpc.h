/* Calls between ranks: what the files of this folder share.
 *
 *     message.c   values, and how a message becomes bytes and back
 *     frame.c     the bytes between two ranks, without sockets: heads, and a reader of them
 *     join.c      starting: the ranks find each other and show that they know the secret
 *     watch.c     who ends meanwhile
 *     peer.c      the connections, and the thread that reads them
 *     call.c      calls and their futures, functions and the threads that run them
 *     rpc.c       life: making, starting, shutting down
 *     remote.c    what is kept for others, and references to it
 *     grad.c      graphs that span ranks: contexts, the node, backward, steps
 *
 * Each two ranks have one connection, over which both call. A frame is sent by the thread that has
 * it, as far as the socket takes it, and the rest by the reader's thread: no thread waits for a
 * slow peer except in tn_rpc_wait, and in tn_rpc_call where the peer has too much to answer
 * already; both have a deadline. The reader's thread only sorts frames: replies go to their
 * futures, calls to a queue that the threads of call.c empty. It also counts references (remote.c),
 * since only there frames of a peer are in order. The first failure of a connection is the end of
 * that peer, for good.
 *
 * Locks: `lock` of tn_rpc for all tables; a peer's own for its output. No frame is sent, and no
 * user's code runs, with either held.
 */
#ifndef TERN_DISTRIBUTED_RPC_RPC_H
#define TERN_DISTRIBUTED_RPC_RPC_H

#include "core/clock.h"
#include "core/error.h"
#include "distributed/rpc/frame.h"
#include "tern/rpc.h"
#include "tern/sys/store.h"

#include <pthread.h>

enum { TN__RPC_BUCKETS = 256, TN__RPC_WHY = 512 };

/* ---- Messages -------------------------------------------------------------------------------- */

typedef struct tn__value {
    uint8_t kind; /* tn__value_kind */
    tn_tensor *tensor;
    char *data; /* bytes and text: [bytes] and a 0 */
    size_t bytes;
    int64_t number;
    tn_remote *remote; /* one reference */
} tn__value;

struct tn_message {
    tn__value *values;
    int64_t count, capacity;
};

/* Sets what in h depends on name (may be NULL) and m. False after raising: it is too large. */
bool tn__message_measure(const tn_rpc *r, int to, tn__rpc_head *h, const char *name,
                         const tn_message *m, const char *operation);
/* The frame of name and m for rank `to`, with the head that was measured. NULL after raising: a
 * reference could not be passed on. */
tn__rpc_frame *tn__message_encode(tn_rpc *r, int to, const tn__rpc_head *h, const char *name,
                                  const tn_message *m, const char *operation, double deadline);
/* The values of a frame's body; tensors with `learns` are leaves that require a gradient where the
 * sender's did. r NULL: references are of no rpc. NULL after raising TN_EFORMAT: malformed; the
 * references are let go then. */
TN_API tn_message *tn__message_decode(tn_rpc *r, const tn__rpc_frame *f, bool learns);

/* Calls f for each reference in the body, until it is malformed. */
typedef void tn__reference_visitor(tn_rpc *r, int owner, uint64_t number, void *user);
void tn__message_references(tn_rpc *r, const tn__rpc_frame *f, tn__reference_visitor *visit,
                            void *user);

/* ---- Peers ----------------------------------------------------------------------------------- */

/* What a rank says in a round of tn_rpc_shutdown. */
typedef struct tn__rpc_ending {
    uint64_t round; /* from 1; 0: nothing */
    uint64_t sent, done;
} tn__rpc_ending;

typedef struct tn__peer {
    int fd; /* -1: this rank itself */
    pthread_mutex_t lock;
    tn__rpc_frame *first, *last; /* to be sent; last is set where there is a first */
    size_t sent;                 /* of first */
    bool watched;                /* the reader's thread waits until the socket takes more */
    bool closed;                 /* nothing more is sent */
    tn__rpc_reader reader;       /* of the reader's thread */

    /* Under the lock of tn_rpc. */
    bool gone;
    char why[TN__RPC_WHY];
    uint64_t unanswered;     /* bytes of calls */
    tn__rpc_ending ended[2]; /* what it said in the last two rounds of tn_rpc_shutdown */
} tn__peer;

/* Sends f, or passes it to this rank itself; takes it over. A failure ends the peer, later. */
void tn__peer_send(tn_rpc *r, int to, tn__rpc_frame *f);
/* Sends a frame that is only this head, if there is memory for it. */
void tn__peer_tell(tn_rpc *r, int to, tn__rpc_head h);
/* The reader's thread. */
bool tn__peers_start(tn_rpc *r);
void tn__peers_stop(tn_rpc *r);
/* Before ranks may wait for this one in tn__peers_join. False after raising. */
bool tn__peers_announce(tn_rpc *r, double deadline);
/* Connects all ranks: sets fd of each peer. False after raising. */
bool tn__peers_join(tn_rpc *r, double deadline);

/* ---- Functions and futures ------------------------------------------------------------------- */

/* What the thread that runs a function knows about it; the function's own calls see it. */
typedef struct tn__serving {
    tn_rpc *rpc;
    int caller;
    double deadline;
    tn_rpc_context *context; /* or NULL */
    struct tn__owed *owed;   /* grad.c: whose gradients this thread has put into the parameters */
} tn__serving;
extern _Thread_local tn__serving *tn__served;
extern _Thread_local bool tn__reading; /* this is a reader's thread: an object's let_go runs in it
                                        */

/* Functions of this folder, which other ranks call by names that no program can register. */
typedef void tn__rpc_builtin(tn_rpc *r, const tn_message *in, tn_message *out);

typedef struct tn__function {
    struct tn__function *next;
    tn_rpc_function f;
    tn__rpc_builtin *builtin; /* instead of f */
    void *user;
    char name[];
} tn__function;

struct tn_future {
    tn_future *next; /* in its bucket */
    tn_rpc *rpc;     /* one reference */
    uint64_t number;
    int to;
    double begun, deadline;
    pthread_cond_t changed;
    bool done;
    tn__rpc_frame *reply; /* or NULL, and then `why` */
    char why[TN__RPC_WHY];
    char name[]; /* of the function */
};

struct tn_rpc {
    int32_t refs; /* atomic: of the program, futures, references, contexts, nodes */
    uint32_t process;
    tn_rpc_options options;
    int rank, ranks;
    tn_store *store; /* NULL: one rank */
    char interface[64];
    int number; /* among those of its group */
    bool started;

    pthread_mutex_t lock;
    tn__peer *peers; /* [ranks] */
    tn__function *functions;

    uint64_t last_number; /* of a call */
    tn_future *futures[TN__RPC_BUCKETS];
    int64_t waiting; /* futures in the table */

    tn__rpc_frame *first, *last;  /* the queue: calls that arrived */
    pthread_cond_t queued, quiet; /* quiet: something has ended */
    pthread_t *threads;           /* [options.threads_most] */
    int thread_count, idle, running, blocked;
    bool stop;
    uint64_t calls_sent, calls_done;

    /* Of tn_rpc_shutdown, which may be called again after an error: the sums of the last round, and
     * what this rank has said in the next (round 0: nothing). */
    tn__rpc_ending sums, said;
    uint64_t rounds; /* that are over */
    bool ending;     /* a thread is in it */

    struct tn__kept *kept; /* remote.c */
    int64_t kept_count;
    uint64_t last_kept;
    struct tn__passing *asked;

    struct tn__owed *owed; /* grad.c */
    struct tn__stepped *optims;
    uint64_t last_context;
    bool grads_busy; /* a thread has put a context's gradients into the parameters */
    pthread_cond_t grads_free;

    int epoll, wake; /* -1: none */
    bool has_reader;
    pthread_t reader;
};

tn_rpc *tn__rpc_keep(tn_rpc *r);
void tn__rpc_release(tn_rpc *r);

/* Whether r may be used now; raises otherwise. */
bool tn__rpc_usable(tn_rpc *r, const char *operation);

/* A frame arrived from rank `from`; takes it over. False: it must not be sent by anyone. */
bool tn__rpc_take(tn_rpc *r, int from, tn__rpc_frame *f, const char **fault);
/* Everything that waits for rank `gone` ends. */
void tn__rpc_lose(tn_rpc *r, int gone, const char *why);
/* Rank `from` says where it is in tn_rpc_shutdown. */
void tn__rpc_note_end(tn_rpc *r, int from, const tn__rpc_head *h);

/* tn_rpc_call for a head with more in it, and builtins. */
tn_future *tn__rpc_issue(tn_rpc *r, int to, const char *name, tn_message *in, tn__rpc_head h,
                         double timeout, const char *operation);
/* Asks rank `owner` for a reference to what it keeps as `what`, for rank `holder`. */
tn_future *tn__rpc_share(tn_rpc *r, int owner, uint64_t what, int holder, double timeout);
/* tn_rpc_wait; *learns as in tn__message_decode. */
tn_message *tn__rpc_finish(tn_future *f, bool learns, const char *operation);
void tn__rpc_forget(tn_future *f); /* instead of finishing; NULL is fine */
/* The first of the threads that answer, so that no call waits for one that cannot be started. False
 * after raising. */
bool tn__rpc_start_threads(tn_rpc *r);
void tn__rpc_stop_threads(tn_rpc *r);

tn_status tn__rpc_add_function(tn_rpc *r, const char *name, tn_rpc_function f,
                               tn__rpc_builtin *builtin, void *user);

/* ---- remote.c -------------------------------------------------------------------------------- */

/* What is kept here for those who hold references: one of the three. */
typedef struct tn__kept {
    struct tn__kept *next;
    uint64_t number;
    tn_tensor *tensor;
    void *object;
    void (*let_go)(void *object);
    bool is_graph;               /* object is one of grad.c */
    struct tn__passing *passing; /* what ranks have passed on that is not there yet */
    int64_t total;
    int32_t holders[]; /* [ranks]: references of each */
} tn__kept;

/* Rank `holder` has one reference more, or one fewer. False: there is no such thing, or the
 * rank is gone. */
bool tn__kept_hold(tn_rpc *r, uint64_t number, int holder);
/* `from`: whose word it is. */
void tn__kept_drop(tn_rpc *r, uint64_t number, int holder, int from);
/* Rank `from`, which holds a reference, passes it on as h says (TN__RPC_SHARE). */
tn_status tn__kept_share(tn_rpc *r, int from, const tn__rpc_head *h);
/* Rank `to` has got it; or will get nothing more from `from`. */
void tn__kept_got(tn_rpc *r, uint64_t number, int from, int to);
void tn__kept_lost(tn_rpc *r, int from, int to);
/* Under the lock: takes all that nobody but `gone` (-1: anybody) holds out of the table; free them
 * with tn__kept_free outside it. */
tn__kept *tn__kept_of_gone(tn_rpc *r, int gone);
void tn__kept_free(tn__kept *list);
/* Rank `holder`'s entry with this number, which stays while it holds it; NULL: none. */
tn__kept *tn__kept_find(tn_rpc *r, uint64_t number, int holder);

/* This rank's reference to {owner, number}, whose count it takes over. NULL after raising. */
tn_remote *tn__remote_new(tn_rpc *r, int owner, uint64_t number);
/* A reference to a graph that this rank keeps from now on; NULL after raising, and the graph is the
 * caller's. And the graph of one; NULL after raising. */
tn_remote *tn__remote_of_graph(tn_rpc *r, void *graph);
void *tn__remote_graph(tn_remote *m, const char *operation);
/* Before m is sent to rank `to`: it holds a reference from now on. False after raising. */
bool tn__remote_pass(tn_rpc *r, tn_remote *m, int to, double deadline);
/* It is not sent after all. */
void tn__remote_recall(const tn_remote *m, int to);
void tn__remote_place(const tn_remote *m, int *owner, uint64_t *number);
tn_remote *tn__remote_keep(tn_remote *m);
/* A frame of rank `from` arrived, or is dropped unread, or all but its first references are: counts
 * its references to things that are here and tells a third rank that its own are, or gives back
 * those that it brought. */
void tn__references_arrived(tn_rpc *r, const tn__rpc_frame *f, int from);
void tn__references_dropped(tn_rpc *r, const tn__rpc_frame *f, uint32_t first);
/* Rank `gone` has sent all that it ever will, here: asks those who may still get what it has passed
 * on, and tells the owners that have asked. */
void tn__references_lost(tn_rpc *r, int gone);
/* Such an owner asks. */
void tn__references_await(tn_rpc *r, int gone, int owner);
void tn__references_end(tn_rpc *r);
bool tn__remote_builtins(tn_rpc *r);

/* ---- grad.c ---------------------------------------------------------------------------------- */

/* A context in which function calls of this thread are made: for the time of a function. */
struct tn_rpc_context {
    tn_rpc *rpc;   /* one reference; none for the one of a function */
    uint64_t id;   /* (its rank + 1) << 48 | number */
    bool ours;     /* of a function: the library's */
    bool *touched; /* [ranks]: where it has gradients, perhaps */
};

/* After a function that a context called: keeps its graph, and appends a reference to it (0: no
 * result requires a gradient), a bit for each result that does, and the ranks that were touched. */
void tn__graph_keep(tn_rpc *r, const tn_message *in, tn_message *out, const tn_rpc_context *c);
void tn__graph_free(void *graph);
/* Under the lock: what is owed to contexts of rank `gone` (-1: of any), for tn__owed_free. */
struct tn__owed *tn__owed_of_gone(tn_rpc *r, int gone);
void tn__owed_free(struct tn__owed *list);
/* The context needs no gradients any more. */
void tn__owed_forget(tn_rpc *r, uint64_t context);
void tn__stepped_free(tn_rpc *r);
bool tn__grad_builtins(tn_rpc *r);

#endif
