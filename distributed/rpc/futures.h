/* Calls that this rank has made: what they wait for, and how much it has asked of whom. */
#ifndef TERN_DISTRIBUTED_RPC_FUTURES_H
#define TERN_DISTRIBUTED_RPC_FUTURES_H

#include "distributed/rpc/frame.h"
#include "tern/rpc.h"

#include <pthread.h>

struct tn_future {
    tn_future *next;
    tn_rpc *rpc; /* one reference */
    uint64_t number;
    int to;
    double begun, deadline;
    bool done;
    tn__rpc_frame *reply; /* NULL: none has come in time, or will */
    char name[];          /* of the function */
};

/* A rank that this one calls. */
typedef struct tn__callee {
    uint64_t unanswered; /* bytes of calls */
    bool ended;          /* waits for nothing more (tn_rpc_shutdown) */
    bool gone;
    char why[512]; /* it is gone: does not change then */
} tn__callee;

typedef struct tn__futures {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ranks;
    tn__callee *callees; /* [ranks] */
    const tn__callee *first_lost;
    uint64_t limit; /* of unanswered bytes */
    uint64_t last_number;
    tn_future *first, **end; /* those that wait, in the order of their calls */
} tn__futures;

bool tn__futures_init(tn__futures *fs, int ranks, int64_t limit); /* false after raising */
void tn__futures_finish(tn__futures *fs);

/* Counts a call of so many bytes and gives f its number; if it `waits`, only when its rank has
 * answered enough. If that rank is gone f is done. False after raising: the time is up. */
bool tn__futures_begin(tn__futures *fs, tn_future *f, uint64_t bytes, bool waits,
                       const char *operation);
/* Nobody waits for f; if its call was not sent, `unsent` are its bytes. */
void tn__futures_cancel(tn__futures *fs, tn_future *f, uint64_t unsent);
void tn__futures_await(tn__futures *fs, tn_future *f);      /* until it is done or late */
bool tn__futures_done(tn__futures *fs, const tn_future *f); /* or late */
/* A reply of rank `from`: the future that waits for it takes it. False: there is none. */
bool tn__futures_reply(tn__futures *fs, int from, tn__rpc_frame *reply);
/* Waits until no call waits for an answer; false at the deadline. */
bool tn__futures_settle(tn__futures *fs, double deadline);

void tn__futures_ended(tn__futures *fs, int rank);
/* Waits until all ranks have ended, or one that has not is gone. -1; or a rank that has not ended,
 * if possible one that is gone. */
int tn__futures_await_ends(tn__futures *fs, double deadline);
/* All calls of that rank fail, for good. */
void tn__futures_lose(tn__futures *fs, int rank, const char *why);
/* Why that rank is gone, or the first that is (-1); NULL: it is not. */
const char *tn__futures_lost(tn__futures *fs, int rank);

#endif
