/* The engine "gloo": operations between hosts, made of messages between two ranks.
 *
 *     gloo.cc      the plugin libtern_gloo.so: gloo's connections behind the table below,
 *                  the only C++ file
 *     gloo.c       joining, waiting, failing, leaving
 *     ops.c        all_reduce and the others, made of messages
 *     address.c    at which of this host's addresses the others can reach it
 *
 * gloo's own collectives are not used. Here a deadline bounds an operation and not each of its
 * waits; a wait knows the rank that it waits for; another thread can end it; reductions are in the
 * order of the ranks, with one rounding; and a message's tag says what is in it, so that ranks
 * which disagree time out instead of writing to each other's memory.
 */
#ifndef TERN_DISTRIBUTED_GROUP_GLOO_H
#define TERN_DISTRIBUTED_GROUP_GLOO_H

#include "tern/sys/group.h"
#include "tern/sys/store.h"

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What the plugin provides ---------------------------------------------------------------- */

typedef struct tn__wire tn__wire; /* one rank's connections to all others */

typedef enum tn__arrival {
    TN__DONE,
    TN__WOKEN, /* by wake */
    TN__LATE,  /* all connections are closed now */
    TN__LOST   /* the connection is closed or failed */
} tn__arrival;

/* Reasons go to why[TN_ENGINE_WHY]. Only wake and close may be called by another thread at the same
 * time. */
typedef struct tn__gloo_api {
    size_t size; /* sizeof(tn__gloo_api) of the build that filled it */
    uint32_t version;

    /* Listens at a numeric address, at ports from first to last; first 0: any. Later, `connect`
     * waits at most `timeout` seconds. NULL: see why. */
    tn__wire *(*open)(const char *address, int first, int last, int rank, int ranks, double timeout,
                      char *why);
    /* The address of this rank for `peer`, which passes it to its `connect`. At most TN__ENDPOINT
     * bytes, the same number for every peer. */
    size_t (*endpoint)(tn__wire *w, int peer, void *bytes);
    bool (*connect)(tn__wire *w, int peer, const void *endpoint, size_t bytes, char *why);

    /* Start a message. It matches the peer's oldest unmatched message with the same tag, which must
     * have as many bytes. The memory is used until the message is done or the wire closed. False:
     * the connection is lost, see why. */
    bool (*send)(tn__wire *w, int peer, uint64_t tag, const void *data, size_t bytes, char *why);
    bool (*receive)(tn__wire *w, int peer, uint64_t tag, void *data, size_t bytes, char *why);
    /* Waits for the oldest message to peer (is_send), or from it, that has not been waited for.
     * Both ranks start their messages in the same order, so they are done in this order. */
    tn__arrival (*wait)(tn__wire *w, int peer, bool is_send, double seconds, char *why);
    /* Makes a wait for this peer return TN__WOKEN: the current one, or the next. */
    void (*wake)(tn__wire *w, int peer);
    /* Whether the connection has ended; if so, see why. Does not wait; must not be called during a
     * wait for this peer. */
    bool (*lost)(tn__wire *w, int peer, char *why);

    /* Closes all connections at once; messages in flight are lost, and no memory is touched
     * afterwards. */
    void (*close)(tn__wire *w);
    /* Messages that have been waited for still arrive. */
    void (*destroy)(tn__wire *w);
} tn__gloo_api;

#define TN__GLOO_VERSION 3
#define TN__ENDPOINT 256
#define TN__GLOO_SYMBOL "tn_gloo_api"
typedef const tn__gloo_api *tn__gloo_entry(void); /* the type of the plugin's one function */

/* ---- The engine ------------------------------------------------------------------------------ */

/* Messages that are waited for together, in the order in which they were started. */
typedef struct tn__started {
    int peer;
    bool is_send;
} tn__started;
typedef struct tn__gloo_batch {
    tn__started *started; /* two for each rank */
    int n;
} tn__gloo_batch;

enum { TN__BATCHES = 4 };

typedef struct tn__gloo {
    tn_engine base;
    const tn__gloo_api *api;
    tn__wire *wire;
    tn_store *store;           /* held */
    uint64_t collectives;      /* so far: the same on every rank */
    uint64_t *sent, *received; /* [ranks], by send and recv */
    tn__gloo_batch batches[TN__BATCHES];
    void *scratch;
    size_t scratch_bytes;
    double begun, deadline; /* of the current operation */

    pthread_mutex_t lock; /* for what abort touches: */
    bool running;
    int waiting;    /* for this peer; -1: none */
    tn_status dead; /* TN_OK while alive */
    char reason[TN_ENGINE_WHY];
} tn__gloo;

/* gloo.c, for ops.c. These return false when the operation has failed. */

/* Nothing happens for 0 bytes. */
bool tn__gloo_send(tn__gloo *e, tn__gloo_batch *b, int peer, uint64_t tag, const void *data,
                   int64_t bytes);
bool tn__gloo_receive(tn__gloo *e, tn__gloo_batch *b, int peer, uint64_t tag, void *data,
                      int64_t bytes);
/* Exchanges empty messages, only to know that the peer is there. */
bool tn__gloo_touch(tn__gloo *e, tn__gloo_batch *b, int peer, uint64_t tag);
/* Waits until all of b is done, and empties it. */
bool tn__gloo_finish(tn__gloo *e, tn__gloo_batch *b);
/* NULL: failed. Contents are kept only until the next call. */
void *tn__gloo_scratch(tn__gloo *e, int64_t bytes);

/* ops.c */
bool tn__gloo_transfer(tn__gloo *e, const tn_transfer *t);

/* ---- Addresses ------------------------------------------------------------------------------- */

/* Every rank calls with the same key: gives `mine` and gets everyone's (values[ranks], to be freed
 * with tn__gloo_forget). False after raising, which names the ranks that did not arrive. */
bool tn__gloo_meet(const tn_engine_options *o, const char *key, const void *mine, size_t bytes,
                   tn_store_value *values);
/* Whether a rank's value is not what was asked for but why it cannot join, which begins with ':',
 * as neither a host's name nor an endpoint does; then raises it. */
bool tn__gloo_refused(const tn_store_value *value, int rank);
void tn__gloo_forget(tn_store_value *values, int n);

/* Writes this rank's numeric address to address[TN__ADDRESS]: that of o->interface (a name or an
 * address); else 127.0.0.1 where all ranks are on one host; else the one from which packets to
 * MASTER_ADDR leave, or that of the first interface, unless it is a public one. False after
 * raising. */
#define TN__ADDRESS 64
bool tn__gloo_address(const tn_engine_options *o, char *address);
/* Whether routers between sites carry packets to this numeric address. */
TN_API bool tn__address_is_public(const char *address);

#ifdef __cplusplus
}
#endif
#endif
