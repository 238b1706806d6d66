/* For writing an engine, which moves a group's bytes.
 *
 * A group (distributed.h) has two parts. The front, distributed/group/group.c, is the same for all:
 * it checks the arguments, numbers the operations, queues them for the group's communication
 * thread, keeps the flight recorder and turns failures into errors. The engine moves the bytes: it
 * runs one operation at a time, in the order of the numbers, and blocks until the operation is
 * done, its deadline has passed, or the group is aborted. An engine that only queues operations on
 * a device has two calls instead, and several operations in flight.
 *
 *     local     threads of one process   distributed/group/engine/local.c, the one to read first
 *     shm       processes of one host    distributed/group/engine/shm/shm.c
 *     gloo      hosts, over TCP          distributed/group/engine/gloo/gloo.cc, a plugin
 *
 * These move host memory. Tensors on a device go through a second engine beside one of them:
 *
 *     staged    around one of them: over page-locked memory, by distributed/group/engine/staged.c
 *     nccl      between GPUs, by backends/cuda/nccl.c in the CUDA plugin
 */
#ifndef TERN_SYS_GROUP_H
#define TERN_SYS_GROUP_H

#include "../distributed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group's operations, for engines, records and errors. */
typedef enum tn_collective {
    TN_ALL_REDUCE,
    TN_ALL_GATHER,
    TN_REDUCE_SCATTER,
    TN_BROADCAST,
    TN_REDUCE_TO_ROOT,
    TN_GATHER,
    TN_SCATTER,
    TN_ALL_TO_ALL,
    TN_SEND,
    TN_RECV,
    TN_BARRIER,
    TN_COLLECTIVES
} tn_collective;
TN_API const char *tn_collective_name(tn_collective kind); /* "all_reduce" */

/* One operation, N the number of ranks. `in` and `out` are contiguous elements of dtype; if both
 * have the same length they may be the same memory.
 *
 *                   in            out
 *   all_reduce      count         count          out = the reduction of every rank's in
 *   all_gather      count         N count        out[r] = in of rank r
 *   reduce_scatter  N count       count          out of rank r = the reduction of every in[r]
 *   broadcast       count (root)  count          (in is not read elsewhere)
 *   reduce_to_root  count         count (root)   (out is not written elsewhere, and may be NULL)
 *   gather          count         N count (root)
 *   scatter         N count (root)  count
 *   all_to_all      N count       N count        out[r] of rank s = in[s] of rank r
 *   send            count                        to rank `root`; recv there
 *   recv                          count          from rank `root`
 *   barrier
 */
typedef struct tn_transfer {
    tn_collective kind;
    tn_dtype dtype;
    tn_reduction reduce;
    int root;
    const void *in;
    void *out;
    int64_t count;
    uint64_t sequence; /* number among the group's operations, from 1, including send and recv */
    double deadline;   /* seconds of the monotonic clock */

    /* Where in and out are. On a device: the operation runs after `ready`, a mark of its compute
     * stream (sys/device.h). `launched` is called once, as soon as the whole operation is queued on
     * the device, with a mark after it that becomes the caller's; the mark may be used until run
     * returns. It is not called if run failed, or if the operation was over when run returned. */
    tn_device device;
    void *ready;
    void (*launched)(void *user, void *end);
    void *launched_user;
} tn_transfer;

/* Bytes of a reason that an engine keeps. */
#define TN_ENGINE_WHY 512

#define TN_ENGINE_VERSION 5 /* of tn_engine, and of the tn_store that it joins through */
typedef struct tn_engine tn_engine;
struct tn_engine {
    size_t size; /* sizeof(tn_engine) of the build that filled it */
    uint32_t version;
    const char *name; /* "shm" */
    int rank, ranks;
    bool vague; /* it cannot tell which rank is missing: the front finds out through the store */
    unsigned devices; /* devices it supports: bits 1 << TN_CPU, 1 << TN_CUDA */
    unsigned queues;  /* those for which it has launch and poll instead of run; 0: none */

    /* Runs one operation. Called by one thread at a time. Raises (tn_raise) TN_EPEER (a rank is
     * gone or late: named if known), TN_EMISMATCH, TN_EUNSUPPORTED, TN_ENOMEM. After a failure the
     * engine is dead. */
    tn_status (*run)(tn_engine *e, const tn_transfer *t);

    /* For an engine that only queues. launch queues all of t on the device, after earlier launches,
     * and calls t->launched; over all groups it is called in the order in which the thread that
     * owns them issued the operations. poll sets whether the oldest operation in flight, which is
     * t, has ended; it does not block. t stays valid until then, with a deadline that starts when
     * it becomes the oldest. Same thread and same errors as run; after an error nothing is in
     * flight any more. */
    tn_status (*launch)(tn_engine *e, const tn_transfer *t);
    tn_status (*poll)(tn_engine *e, const tn_transfer *t, bool *over);

    /* Makes `run` on this rank, and on the other ranks that can be reached, fail soon with TN_EPEER
     * and this reason. May be called by any thread, at any time, more than once; does not block. */
    void (*abort)(tn_engine *e, const char *reason);

    /* Memory that operations on it need not copy; the entries may be NULL. Every rank calls in the
     * same order with the same size, from the thread that calls run. Returns NULL if there is none,
     * or after raising. */
    void *(*alloc)(tn_engine *e, size_t bytes, double deadline);
    void (*free)(tn_engine *e, void *memory);
    /* The same on the engine's device; the entries may be NULL. */
    void *(*device_alloc)(tn_engine *e, size_t bytes, double deadline);
    void (*device_free)(tn_engine *e, void *memory);

    /* Whether an operation of another engine can still succeed: TN_OK, or what run would raise for
     * a rank that has died or given up, and with `all` also for one that has left. Called by the
     * thread that calls run. Does not block. Engines for host memory have it. */
    tn_status (*check)(tn_engine *e, bool all);

    /* Leaves the group: peers that still need this rank get an error which says that it left. Only
     * `free` and `destroy` follow. NULL: destroy does it. */
    void (*leave)(tn_engine *e);
    void (*destroy)(tn_engine *e);
};

typedef struct tn_engine_options {
    tn_store *store;
    int rank, ranks;
    double deadline;
    double timeout;        /* seconds, for the group's later operations */
    const char *interface; /* network interface or address for gloo; NULL: chosen */
    tn_device device;      /* nccl: this rank's GPU */
    /* For who meets through the store to call now and then while it waits, and for a device engine
     * during a long operation: `check` of the engine beside it. May be NULL. */
    tn_status (*check)(void *user, bool all);
    void *check_user;
} tn_engine_options;

/* Joins the engine of this name ("local", "shm", "gloo") as one of `ranks`; they meet through the
 * store, which must be empty and the group's own. "shm+staged" and "shm+nccl" (and so on) take
 * tensors on devices too. NULL after raising. */
TN_API tn_engine *tn_engine_new(const char *name, const tn_engine_options *options);

/* Loads NCCL; false after raising TN_EUNSUPPORTED: this process cannot use it. */
TN_API bool tn__nccl_is_there(void);

/* tn_raise and tn_error_take, for a plugin, which is not linked with libtern. */
typedef struct tn_engine_errors {
    tn_status (*raise)(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
    bool (*take)(tn_error_record *record);
} tn_engine_errors;

/* What libtern_cuda.so exports as tern_nccl_engine. Without options: returns NULL, and raises what
 * is missing, if anything is. Its unique id is exchanged through the store. */
typedef tn_engine *tn_nccl_engine_function(uint32_t version, const tn_engine_errors *errors,
                                           const tn_engine_options *o);

/* y[i] = the complete reduction of x[0][i], x[1][i], … in this order; bf16 and f16 are rounded
 * once. y may be one of the x. */
TN_API void tn__reduce_all(tn_reduction how, tn_dtype dtype, void *y, const void *const *x,
                           int ranks, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
