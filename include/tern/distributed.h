/* Processes (ranks) that work together: who they are, and how they move tensors.
 *
 *     tn_group *world = tn_dist_init(tn_dist_defaults());     // one rank if nothing is set
 *     tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
 *     tn_dist_finish();
 *
 * Started by `tern run -n 4 ./program`, or by torchrun, mpirun or srun. Three layers, each usable
 * alone: stores (store.h), in which ranks find each other; groups, here; and parallelism
 * (parallel.h), which distributes one model over many ranks.
 *
 * Every wait has a deadline. After its first failure a group is dead: the failing call and every
 * later one is an error that names group, operation, number and the missing rank, on every
 * remaining rank. A rank that calls a collective with an error pending aborts the group, and one
 * that exits with it (tn_error_exit) or calls tn_dist_finish aborts all its groups, so that its
 * peers get an error instead of hanging. One rank alone has no peers: its group outlives errors.
 *
 * Read next: parallel.h, docs/distributed.md, distributed/group/engine/local.c.
 */
#ifndef TERN_DISTRIBUTED_H
#define TERN_DISTRIBUTED_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_store tn_store; /* store.h */
typedef struct tn_group tn_group;
typedef struct tn_work tn_work;

/* ---- Starting -------------------------------------------------------------------------------- */

typedef struct tn_dist_options {
    /* "env://" (default): RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT as torchrun sets
     * them, else what OpenMPI, MPICH or Slurm set, else one rank. "tcp://HOST:PORT": rank 0 serves
     * the store there, and rank and ranks must be given. */
    const char *init;
    int rank, ranks; /* -1: from the environment */
    /* NULL: shm on one host, gloo between hosts; for tensors on devices, if any: nccl if each rank
     * has its own GPU and NCCL is installed, else staged. Or "shm", "gloo", "nccl", "staged",
     * "gloo+nccl", … (docs/distributed.md). */
    const char *engine;
    /* TN_CPU: the thread's default device does not change. TN_CUDA: it becomes GPU number
     * LOCAL_RANK modulo the GPUs on this host; TN_EDEVICE if there is none. */
    tn_device_kind device;
    /* Network interface or own address for gloo: TERN_INTERFACE; NULL: 127.0.0.1 on one host, else
     * the one that reaches the store, unless that is a public address (TN_EPEER): the connections
     * are not authenticated (docs/security.md). */
    const char *interface;
    double timeout; /* seconds an operation may take: 600, or TERN_TIMEOUT */
    bool checked;   /* compare operations before they run: false, or TERN_CHECKED=1 */
    bool signals;   /* SIGUSR1 dumps the flight recorder: true */
    /* true: tn_set_threads(cores / ranks of this host) unless OMP_NUM_THREADS is set */
    bool threads;
    bool from_defaults;
} tn_dist_options;
TN_API tn_dist_options tn_dist_defaults(void);

/* Joins the other ranks. The library owns the group until tn_dist_finish. A second call returns the
 * same group. All compute at the highest level of the CPU's kernels that each rank has, since other
 * levels give other bits; rank 0 says on stderr if that is lower than its own or another's. NULL
 * after an error: TN_EPEER (names the missing ranks), TN_EVALUE (a bad variable), TN_EMISMATCH
 * (versions differ, or processors that have no level with the same bits), … */
TN_API tn_group *tn_dist_init(tn_dist_options options);
TN_API tn_group *tn_world(void); /* tn_dist_init's group; NULL before it and after tn_dist_finish */
TN_API void tn_dist_finish(void);

TN_API int tn_local_rank(void);       /* among the ranks of this host; 0 if alone */
TN_API int tn_restart_count(void);    /* how often the launcher has restarted the job; 0 at first */
TN_API tn_store *tn_dist_store(void); /* the world's store; NULL before tn_dist_init */

/* Runs f(group, user) in `ranks` threads (1 to 1024), each one rank of a local group: for tests,
 * and to try data parallelism without processes. An error of any rank ends the others and is raised
 * here. */
TN_API tn_status tn_local_run(int ranks, void (*f)(tn_group *world, void *user), void *user);

/* tn_local_run with n ranks, of which rank r has the default device devices[r]: one process trains
 * on all its devices, if f makes a model and calls tn_ddp. Devices may repeat. TN_EDEVICE: one does
 * not exist, or they are of two kinds. Tensors on devices are sent staged. */
TN_API tn_status tn_local_run_on(const tn_device *devices, int n,
                                 void (*f)(tn_group *world, void *user), void *user);

/* ---- Groups ---------------------------------------------------------------------------------- */

/* A group is used by one thread: the first that calls an operation. A call from another is
 * TN_ESTATE, and so is one in a child of fork, where tn_group_free and tn_dist_finish do not affect
 * the parent. NULL is a group of one rank everywhere. */
TN_API int tn_group_rank(const tn_group *g); /* 0 … size-1; -1: not a member */
TN_API int tn_group_size(const tn_group *g);
TN_API const char *tn_group_name(const tn_group *g);
TN_API int tn_group_world_rank(const tn_group *g, int rank); /* a member's rank in the world */
TN_API const char *tn_group_engine(const tn_group *g);       /* "shm" */
TN_API void tn_group_set_timeout(tn_group *g, double seconds);

/* A group of some ranks of `parent`; every rank of parent calls it, in the same order as parent's
 * other operations, with the same list: an error of one rank is that of all. Ranks are sorted. A
 * rank not in the list gets a group that refuses operations. */
TN_API tn_group *tn_group_new(tn_group *parent, const int *ranks, int n);
/* Splits parent into groups, with one exchange: ranks with the same colour form a group, in
 * parent's order. Every rank of parent calls it. A negative colour: this rank is in no group, and
 * gets one of size 0 that refuses operations. */
TN_API tn_group *tn_group_split(tn_group *parent, int colour);
/* Not for the world (TN_ESTATE), which tn_dist_finish frees. Any use of a freed group is
 * TN_ESTATE. */
TN_API void tn_group_free(tn_group *g);

/* Aborts the group: all ranks' operations on g fail with this reason, now and later. With an error
 * pending in a group of one rank it does nothing: no one waits, and the error is raised anyway. */
TN_API void tn_group_abort(tn_group *g, const char *reason);

/* A tensor in memory that the group's operations need not copy (an ordinary one if the engine has
 * none). Every rank calls in the same order with the same shape and dtype. Must be freed before g.
 * A child of fork sees the parent's elements in it, but its own writes are private. */
TN_API tn_tensor *tn_group_empty(tn_group *g, tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_group_empty_on(tn_group *g, tn_device device, tn_dims dims, tn_dtype dtype);

/* ---- Operations ------------------------------------------------------------------------------- *
 *
 * All ranks of a group call the same operations in the same order; with nccl that holds over all
 * groups of a thread that ranks share. A call returns at once; the operation owns the tensors until
 * tn_work_wait. Tensors are contiguous: f32 f64 bf16 f16 i64 i32 u8 i8. Not recorded
 * (differentiable ones are below). Engines reduce in the order of the ranks, so a rerun gives the
 * same bits, and so does another engine; nccl has its own order, which depends on the hardware.
 *
 * Tensors may be on a device: those of one call on the same one, and on all ranks of the same kind.
 * Such an operation runs after what was queued on the device before the call, and what is queued
 * after tn_work_wait sees its result. The wait itself blocks only until the whole operation is
 * queued (nccl: at once; staged: when the last bytes are on their way back to the device). So a
 * later failure is raised by the group's next call, and tensors computed from the result until then
 * are invalid; tn_barrier returns when every operation before it has ended. */

/* Waits at most `timeout` seconds (0: until the operation's own deadline) and frees w. Raises the
 * operation's error. Waiting in any order is fine. For NULL, which a call returns if it failed or
 * had nothing to do, returns the pending error or TN_OK. A wait that times out aborts the group,
 * since the operation still uses the tensors. */
TN_API tn_status tn_work_wait(tn_work *w, double timeout);
TN_API bool tn_work_done(const tn_work *w); /* whether waiting would not block */

/* how: TN_SUM, TN_MEAN, TN_PRODUCT, TN_MIN, TN_MAX. Sums and products of integers wrap; MEAN rounds
 * towards zero, and wraps only for i64. NaN wins in MIN and MAX, except perhaps over nccl. */
TN_API tn_work *tn_all_reduce(tn_group *g, tn_tensor *t, tn_reduction how);
/* out (N, shape of t) */
TN_API tn_work *tn_all_gather(tn_group *g, tn_tensor *out, tn_tensor *t);
/* t (N, shape of out): out becomes the reduction of all ranks' t[rank] */
TN_API tn_work *tn_reduce_scatter(tn_group *g, tn_tensor *out, tn_tensor *t, tn_reduction how);
TN_API tn_work *tn_broadcast(tn_group *g, tn_tensor *t, int root);
/* t: root's only */
TN_API tn_work *tn_reduce_to(tn_group *g, tn_tensor *t, int root, tn_reduction how);
/* out: root, else NULL */
TN_API tn_work *tn_gather_to(tn_group *g, tn_tensor *out, tn_tensor *t, int root);
/* t: root, else NULL */
TN_API tn_work *tn_scatter_from(tn_group *g, tn_tensor *out, tn_tensor *t, int root);
/* t and out (N, …): out[r] of rank s is t[s] of rank r */
TN_API tn_work *tn_all_to_all(tn_group *g, tn_tensor *out, tn_tensor *t);
/* A send may wait for its recv: when two ranks exchange, one must send first and the other receive
 * first. */
TN_API tn_work *tn_send(tn_group *g, tn_tensor *t, int to);
TN_API tn_work *tn_recv(tn_group *g, tn_tensor *t, int from);

TN_API tn_status tn_barrier(tn_group *g);
/* A barrier through the store, so it works even if the engine hangs: names the ranks that did not
 * arrive within `timeout` seconds. */
TN_API tn_status tn_monitored_barrier(tn_group *g, double timeout);

/* Bytes of any length. Broadcast: root's; *data is malloc'ed on the others. Gather: data[N],
 * bytes[N] on every rank, each malloc'ed. tn_bytes_free frees one. */
TN_API tn_status tn_broadcast_bytes(tn_group *g, void **data, size_t *bytes, int root);
TN_API tn_status tn_all_gather_bytes(tn_group *g, const void *data, size_t bytes, void **all,
                                     size_t *all_bytes);
TN_API void tn_bytes_free(void *data);

/* (sum over ranks of `sum`) / (sum over ranks of `count`): a loss or a metric over the global
 * number of tokens, not a mean of means. NaN after an error and if the count is 0. */
TN_API double tn_group_mean(tn_group *g, double sum, double count);

/* ---- Differentiable operations (the result requires a gradient if x does) -------------------- *
 *
 * Named by the forward communication. In the first four every rank has its own x and result, and
 * the loss is the sum of all ranks' losses. The last two enclose the part of a network that is
 * split between ranks (Shoeybi et al. 2019, arXiv:1909.08053): outside it all ranks hold the same x
 * and compute the same loss. Megatron calls them copy to and reduce from the parallel region. */

TN_API tn_tensor *tn_dist_all_reduce(tn_group *g, tn_tensor *x); /* the sum; backward: all_reduce */
/* (…) -> (N, …); backward: reduce_scatter */
TN_API tn_tensor *tn_dist_all_gather(tn_group *g, tn_tensor *x);
/* (N, …) -> (…): the sum of all ranks' x[rank]; backward: all_gather */
TN_API tn_tensor *tn_dist_reduce_scatter(tn_group *g, tn_tensor *x);
/* (N, …) -> (N, …): row r is rank r's x[rank]; backward: all_to_all */
TN_API tn_tensor *tn_dist_all_to_all(tn_group *g, tn_tensor *x);

TN_API tn_tensor *tn_dist_copy(tn_group *g, tn_tensor *x); /* x, nothing is sent; backward: sum */
/* the sum of all ranks' parts; backward: the gradient unchanged, nothing is sent */
TN_API tn_tensor *tn_dist_sum_parts(tn_group *g, tn_tensor *x);

/* Along dimension dim (negative: from the end), N pieces of equal size. In the first two every rank
 * has its own x and result; slice's x and join's result are the same on all ranks, as with copy and
 * sum_parts. TN_ESHAPE: a size that N does not divide; TN_EINDEX: dim. */
/* (…, n, …) -> (…, N n, …): all ranks' x, concatenated; backward: scatter_dim */
TN_API tn_tensor *tn_dist_gather_dim(tn_group *g, tn_tensor *x, int dim);
/* (…, N n, …) -> (…, n, …): this rank's piece of the sum of all x; backward: gather_dim */
TN_API tn_tensor *tn_dist_scatter_dim(tn_group *g, tn_tensor *x, int dim);
/* (…, N n, …) -> (…, n, …): this rank's piece, a view; nothing is sent; backward: join */
TN_API tn_tensor *tn_dist_slice(tn_group *g, tn_tensor *x, int dim);
/* (…, n, …) -> (…, N n, …): all ranks' x, concatenated, the same on all; backward: slice */
TN_API tn_tensor *tn_dist_join(tn_group *g, tn_tensor *x, int dim);

/* ---- Meshes: ranks in named dimensions ------------------------------------------------------- */

#define TN_MESH_DIMS 5
typedef struct tn_mesh tn_mesh;

/* The world's ranks in row-major order: sizes {2, 4}, names {"dp", "tp"}: rank r is (r / 4, r % 4).
 * Every rank calls. The product of sizes is the size of g, which must outlive the mesh. */
TN_API tn_mesh *tn_mesh_new(tn_group *g, int n, const int *sizes, const char *const *names);
/* The group of ranks along this dimension; or, for several names separated by spaces, of the ranks
 * that differ only in these dimensions, in g's order: "replicate shard" are the ranks with
 * different batches. The first call for a combination makes its group: every rank calls. Owned by
 * m. NULL after an error, and if g is NULL. */
TN_API tn_group *tn_mesh_group(tn_mesh *m, const char *names);
/* this rank in that group, without making it; -1 after an error */
TN_API int tn_mesh_rank(tn_mesh *m, const char *names);
TN_API void tn_mesh_free(tn_mesh *m);

/* ---- Flight recorder ------------------------------------------------------------------------- */

/* The last 1000 operations of this process: group, number, name, shape, state, times. Written
 * automatically on a time-out and on SIGUSR1, to TERN_FLIGHT_DIR/tern-flight-RANK.txt; without that
 * variable to tern-flight-RANK-PID.txt in $XDG_RUNTIME_DIR/tern, or else in tern-UID in $TMPDIR or
 * /tmp, which must be private to this user. The log says where; it is always a new file, and links
 * are not followed. */
TN_API void tn_flight_dump(FILE *file);
/* As a trace for chrome://tracing and Perfetto. */
TN_API tn_status tn_flight_trace(const char *path);
/* Adds the program's own event ("backward") from begin to now, shown beside the operations. */
TN_API void tn_flight_mark(const char *name, double begin);
TN_API double tn_flight_now(void);

#ifdef __cplusplus
}
#endif
#endif
