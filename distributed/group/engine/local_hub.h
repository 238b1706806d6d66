/* What the ranks of the engine "local", threads of one process, share: a seat for each, which says
 * what operation it is in; what is sent and not yet received; the first failure, which is the whole
 * group's. local.c acts under the hub's lock and waits here. */
#ifndef TERN_DISTRIBUTED_GROUP_ENGINE_LOCAL_HUB_H
#define TERN_DISTRIBUTED_GROUP_ENGINE_LOCAL_HUB_H

#include "distributed/group/group.h"

/* One rank's state. */
typedef struct tn__seat {
    bool here, left;
    tn_transfer t;     /* while here */
    uint64_t finished; /* operations done */
} tn__seat;

typedef struct tn__parcel {
    struct tn__parcel *next;
    int from, to;
    tn_dtype dtype;
    int64_t count;
    char data[];
} tn__parcel;

typedef struct tn__hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ranks, refs;
    int arrived, done; /* of the current collective */
    uint64_t round;    /* how often all have arrived, or all have done their share */
    tn_status dead;    /* TN_OK, or why nothing works any more */
    char reason[TN_ENGINE_WHY];
    tn__parcel *parcels; /* oldest first */
    tn__seat seats[];
} tn__hub;

/* Rank 0 makes the hub; the others find its address in the store, which is in this process's
 * memory. NULL after raising. */
tn__hub *tn__hub_join(const tn_engine_options *o);
/* Empties the rank's seat; the last to leave frees the hub. */
void tn__hub_leave(tn__hub *h, int rank);

/* Call the others under the lock. */

/* Records a failure unless there was one. Returns the status of the first. */
tn_status tn__hub_die(tn__hub *h, tn_status status, const char *format, ...) TN_PRINTF(3, 4);

/* Waits for a change, for rank `me` in t. In a loop around the condition: the deadline is checked
 * before the wait, so that a last-moment change is seen. */
tn_status tn__hub_wait(tn__hub *h, int me, const tn_transfer *t);

/* Fails when a rank has left. */
tn_status tn__hub_check(tn__hub *h);

/* Sends p, which then belongs to the hub; takes the oldest one sent, or NULL. */
void tn__hub_send(tn__hub *h, tn__parcel *p);
tn__parcel *tn__hub_take(tn__hub *h, int from, int to);

#endif
