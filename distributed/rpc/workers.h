/* The queue of calls that have arrived, and the threads that answer them. */
#ifndef TERN_DISTRIBUTED_RPC_WORKERS_H
#define TERN_DISTRIBUTED_RPC_WORKERS_H

#include "distributed/rpc/frame.h"

#include <pthread.h>

typedef struct tn__workers {
    pthread_mutex_t lock;
    pthread_cond_t queued, quiet; /* quiet: nothing runs or is queued, perhaps */
    tn__rpc_frame *first, *last;  /* the queue; last is set where there is a first */
    pthread_t *threads;           /* [threads_most] */
    int concurrent, threads_most; /* calls at a time; threads */
    int thread_count, idle, running, blocked;
    bool stop;
    void (*answer)(void *user, tn__rpc_frame *call); /* takes the call over */
    void *user;
} tn__workers;

/* w has concurrent, threads_most, answer and user. False after raising. */
bool tn__workers_init(tn__workers *w);
void tn__workers_finish(tn__workers *w);
/* Starts the first thread, so that no call waits for one that cannot be started. False after
 * raising. */
bool tn__workers_start(tn__workers *w);
/* Waits for what runs; drops what is queued. */
void tn__workers_stop(tn__workers *w);

/* Takes a call over, which is dropped after tn__workers_stop. */
void tn__workers_push(tn__workers *w, tn__rpc_frame *call);
/* A thread that answers waits for another rank (true), and then no longer: meanwhile it does not
 * count as running, so that another may be started. Functions that call back and forth end as long
 * as there are threads. */
void tn__workers_block(tn__workers *w, bool blocked);
/* Waits until nothing runs or is queued; false at the deadline. */
bool tn__workers_settle(tn__workers *w, double deadline);

#endif
