/* The inside of a group, for the files of distributed/.
 *
 *     group.c          making and ending groups, failure
 *     subgroup.c       groups of some ranks of another
 *     mesh.c           groups along the dimensions of a block
 *     work.c           the queue, the communication thread, waiting
 *     launch_order.c   the order in which operations are launched, over all groups
 *     collectives.c    the public operations: checks, then tn__group_issue
 *     recorder.c       the last 1000 operations
 *     checked.c        the option `checked`: what ranks compare before an operation
 *     engine.c         engines by name
 *     staged.c         transfers of device memory through a CPU engine
 *     nccl.c           the plugin's engine beside a CPU engine
 */
#ifndef TERN_DISTRIBUTED_GROUP_GROUP_H
#define TERN_DISTRIBUTED_GROUP_GROUP_H

#include "core/alive.h"
#include "core/clock.h"
#include "tern/sys/device.h"
#include "tern/sys/group.h"
#include "tern/sys/store.h"

#include <pthread.h>

/* Seconds; deadlines in clock time stay far from any overflow. */
#define TN__TIMEOUT_MOST 1e9

typedef struct tn__fingerprint tn__fingerprint; /* fingerprint.h */

/* An engine with a count of who still needs it: the group, and each tensor of tn_group_empty. */
typedef struct tn__engine_ref {
    tn_engine *engine;
    int32_t refs;     /* atomic */
    uint32_t process; /* that made it (core/fork.h) */
} tn__engine_ref;

struct tn_work {
    tn_group *group;
    tn_transfer t;
    bool launches;        /* the engine only queues it */
    tn_work *next_launch; /* in the launch order (launch_order.c) */
    /* Instead of a transfer: memory of the engine, on t.device. */
    bool is_alloc;
    size_t alloc_bytes;
    void *allocated;

    void *ready; /* on a device: t.ready, the work's own */

    tn_tensor *in, *out; /* one reference each, or NULL */
    uint64_t record;     /* its entry in the flight recorder */

    /* Under the group's lock. */
    bool done;      /* it is over */
    bool abandoned; /* no one waits for it: the communication thread frees it at its end */
    void *end;      /* on a device, once all is queued: the mark after it, the work's own */
    tn_status status;
    tn_work *next;
};

typedef struct tn__works {
    tn_work *first, *last; /* last is set where there is a first */
} tn__works;

struct tn_group {
    tn__alive alive;
    char name[64];
    uint32_t process; /* that made it (core/fork.h) */
    int rank, size;   /* rank -1: not a member */
    int *world;       /* [size]: the members' ranks in the world */
    tn_store *store;
    tn_store *reports;      /* what ranks say when they fail, of all groups that stem from one */
    tn__engine_ref *engine; /* NULL: one rank, or not a member */
    char engine_name[32];
    tn__fingerprint *prints; /* [size] with options.checked: each rank's; else NULL */
    char interface[64];      /* what options.interface points to */
    tn_dist_options options;
    int children;      /* groups made from this one */
    int rpcs;          /* tn_rpc_new */
    uint64_t sequence; /* of the last operation issued */
    uint64_t barriers; /* monitored ones */

    /* The first thread that issued an operation: no other may. */
    bool owned;
    pthread_t owner;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a work queued or done, stop, dead */
    pthread_t thread;
    bool has_thread, stop;
    tn__works queued, launched; /* launched: running on a device, the oldest first */
    tn_work *running;           /* what the engine runs, or NULL */
    tn_status dead;             /* TN_OK while alive; then `reason` is set */
    char reason[1024];
};

/* A group over ranks that meet through `store` (its own, empty; held from now on). NULL after
 * raising. engine NULL: a group of one rank. `world` (ranks, may be NULL: 0 … ranks-1) is
 * copied. */
TN_API tn_group *tn__group_create(const char *name, const char *engine, tn_store *store, int rank,
                                  int ranks, const int *world, const tn_dist_options *options);

/* A group of g's ranks, in its order, for another thread: over g's engine without the part for
 * devices. Every rank calls, as with tn_group_new. NULL after raising. */
tn_group *tn__group_again(tn_group *g, const char *name, double timeout);

/* Whether g has an engine and was made in a parent (fork). If so, nothing in it may be touched: not
 * its lock, which a thread of the parent may hold, nor its engine, whose connections and memory are
 * the parent's. */
bool tn__group_inherited(const tn_group *g);
/* The same, and raises if so. */
bool tn__group_refuse_inherited(const tn_group *g, const char *operation);

/* Whether an operation may be issued now: a member, alive, the right thread, no error pending
 * (which aborts the group). Raises otherwise. */
bool tn__group_usable(tn_group *g, const char *operation);

/* Queues t with references to its tensors. NULL after raising. */
tn_work *tn__group_issue(tn_group *g, const tn_transfer *t, tn_tensor *in, tn_tensor *out);

/* The first failure of g, from any thread: dead, with "group world (shm), rank 0 of 4: …" in
 * front. */
void tn__group_fail(tn_group *g, tn_status status, const char *why);

/* Aborts root, which stems from no other group, and all that stem from it. */
void tn__groups_abort(const tn_group *root, const char *reason);

/* work.c */
bool tn__group_start(tn_group *g); /* the communication thread; false after raising */
void tn__group_stop(tn_group *g);
/* Memory from the engine, requested in its thread; NULL when there is none, or after raising. */
void *tn__group_alloc(tn_group *g, tn_device device, size_t bytes);

/* checked.c: compares w with what the other ranks are about to do. */
tn_status tn__group_compare(const tn_group *g, const tn_work *w);

/* launch_order.c: the order in which this thread's operations are launched. An operation is in it
 * from its issue until it is launched or dropped. */
void tn__launch_add(tn_work *w);
void tn__launch_remove(tn_work *w);
bool tn__launch_is_first(const tn_work *w); /* among those that its thread has issued */

/* "all_reduce f32 [1024] sum": what an operation is, for messages. */
TN_API void tn__transfer_text(const tn_transfer *t, char *text, size_t size);

/* Engines of this library (engine.c lists them). */
tn_engine *tn__local_new(const tn_engine_options *options);
tn_engine *tn__shm_new(const tn_engine_options *options);
tn_engine *tn__gloo_new(const tn_engine_options *options);
/* Engines around another one, to take transfers on devices too. They own `inner`, and destroy it on
 * failure (NULL after raising). */
tn_engine *tn__staged_new(tn_engine *inner);
tn_engine *tn__nccl_new(tn_engine *inner, const tn_engine_options *options);

/* recorder.c: the flight recorder of the process. */
/* returns the entry's number */
uint64_t tn__flight_queued(const tn_group *g, const tn_transfer *t);
void tn__flight_started(uint64_t entry, double when);
void tn__flight_ended(uint64_t entry, double when, tn_status status);
/* Writes the file, once for a failure; the log says where. */
TN_API void tn__flight_save(int rank, const char *reason);
/* SIGUSR1 writes the file from now on, unless the program has a handler of its own. */
TN_API void tn__flight_signals(int rank);

#endif
