/* What moves the bytes of a group: for those who write an engine.
 *
 * A group (distributed.h) is two parts. The front, distributed/group/group.c, is the same for all:
 * it checks the arguments, numbers the operations, queues them for the group's communication
 * thread, keeps the flight recorder and turns failures into errors. The engine moves the bytes: it
 * runs one operation at a time, in the order of the numbers, and blocks until the operation is
 * done, its deadline has passed, or the group is aborted. An engine that only queues them on a
 * device has two calls instead, and several operations under way.
 *
 *     local     threads of one process          distributed/group/engine/local.c, the one to read
 * first shm       processes of one host           distributed/group/engine/shm/shm.c gloo hosts,
 * over TCP                 distributed/group/engine/gloo/gloo.cc, a plugin checked   around any of
 * them: compares what the ranks are about to do
 *
 * These move host memory. Tensors on a device travel through a second engine beside one of them:
 *
 *     staged    around one of them: over page-locked memory, by distributed/group/engine/staged.c
 *     nccl      between GPUs, by backends/cuda/nccl.c in the plugin of CUDA
 */
#ifndef TERN_SYS_GROUP_H
#define TERN_SYS_GROUP_H

#include "../distributed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a group does, as engines, records and errors name it. */
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

/* One operation, N the number of ranks. `in` and `out` are elements of dtype, dense; where both
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
    uint64_t sequence; /* of the group's operations, 1 for the first; send and recv count as well */
    double deadline;   /* seconds of the monotonic clock */

    /* Where in and out are. On a device: `ready` is a mark of its compute stream (sys/device.h)
     * which the operation comes after. `launched` is called once, as soon as all of the operation
     * is queued on the device, with a mark after it that becomes the caller's; the mark may be used
     * until run returns. Not called: run has failed, or the operation was over when it returned. */
    tn_device device;
    void *ready;
    void (*launched)(void *user, void *end);
    void *launched_user;
} tn_transfer;

/* Bytes of the buffer for an engine's reason. */
#define TN_ENGINE_WHY 512

#define TN_ENGINE_VERSION 3 /* of tn_engine */
typedef struct tn_engine tn_engine;
struct tn_engine {
    size_t size; /* sizeof(tn_engine) of the build that filled it */
    uint32_t version;
    const char *name; /* "shm" */
    int rank, ranks;
    bool vague; /* its reasons cannot say which rank is missing: the front finds out in the store */
    unsigned devices; /* where its transfers may be: bits 1 << TN_CPU, 1 << TN_CUDA */
    unsigned queues;  /* for which of them it has launch and poll instead of run; 0: none */

    /* Runs one operation. Called by one thread, never twice at a time. TN_OK, or with a reason in
     * why[TN_ENGINE_WHY]: TN_EPEER (a rank is gone or late: named where the engine knows it),
     * TN_EMISMATCH, TN_EUNSUPPORTED, TN_ENOMEM. After a failure the engine is dead. */
    tn_status (*run)(tn_engine *e, const tn_transfer *t, char *why);

    /* Where the engine only queues. launch queues all of t on the device, after what was launched
     * before, and calls t->launched; over all groups it is called in the order in which the thread
     * that owns them has issued the operations. poll says whether the oldest under way, which is t,
     * has ended; it does not block. t stays where it is until then, with a deadline that begins to
     * count when it becomes the oldest. Same thread and same errors as run; after an error nothing
     * is under way any more. */
    tn_status (*launch)(tn_engine *e, const tn_transfer *t, char *why);
    tn_status (*poll)(tn_engine *e, const tn_transfer *t, bool *over, char *why);

    /* Makes a `run` on this rank, and on the other ranks as far as they can be reached, fail soon
     * with TN_EPEER and this reason. Any thread, any time, more than once; does not block. */
    void (*abort)(tn_engine *e, const char *reason);

    /* Memory that operations on it need not copy, or NULL entries. Every rank calls in the same
     * order with the same size, from the thread that calls run. NULL when there is none. */
    void *(*alloc)(tn_engine *e, size_t bytes, double deadline, char *why);
    void (*free)(tn_engine *e, void *memory);
    /* The same on the engine's device, or NULL entries. */
    void *(*device_alloc)(tn_engine *e, size_t bytes, double deadline, char *why);
    void (*device_free)(tn_engine *e, void *memory);

    /* Whether an operation of another engine can still succeed: TN_OK, or what run would say of a
     * rank that has died or given up, and with `all` also of one that has left. Called by the
     * thread that calls run. Does not block. NULL: only run can tell. */
    tn_status (*check)(tn_engine *e, bool all, char *why);

    /* Says goodbye: peers that still need this rank get an error which says that it left. Only
     * `free` and `destroy` follow. NULL: destroy does it. */
    void (*leave)(tn_engine *e);
    void (*destroy)(tn_engine *e);
};

typedef struct tn_engine_options {
    tn_store *store;
    int rank, ranks;
    double deadline;
    double timeout;        /* what the group uses later, in seconds */
    const char *interface; /* network interface or address for gloo; NULL: chosen */
    tn_device device;      /* nccl: this rank's GPU */
    /* What an engine of devices may call while an operation takes long: `check` of the engine
     * beside it. May be NULL. */
    tn_status (*check)(void *user, bool all, char *why);
    void *check_user;
} tn_engine_options;

/* Joins the engine of this name ("local", "shm", "gloo") as one of `ranks`; they meet through the
 * store, which is empty at first and the group's own. "shm+staged" and "shm+nccl" (and so on) take
 * tensors on devices as well. NULL with a reason. */
TN_API tn_engine *tn_engine_new(const char *name, const tn_engine_options *options, char *why);

/* Whether this process can use NCCL, which it loads; otherwise a reason in why[TN_ENGINE_WHY]. */
TN_API bool tn__nccl_is_there(char *why);

/* What libtern_cuda.so exports as tern_nccl_engine. Without options: NULL, and why says what is
 * missing, or is "" when NCCL is there. Its unique id travels through the store. */
typedef tn_engine *tn_nccl_engine_function(uint32_t version, const tn_engine_options *o, char *why);

/* y[i] = the reduction of x[0][i], x[1][i], … in this order, finished; bf16 and f16 are rounded
 * once. y may be one of the x. */
TN_API void tn__reduce_all(tn_reduction how, tn_dtype dtype, void *y, const void *const *x,
                           int ranks, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
