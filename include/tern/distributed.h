/* Processes (ranks) that act together: who they are, and how they move tensors.
 *
 *     tn_group *world = tn_dist_init(tn_dist_defaults());     // one rank when nothing is set
 *     tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
 *     tn_dist_finish();
 *
 * Started by `tern run -n 4 ./program`, and just as well by torchrun, mpirun and srun. Three
 * layers, each usable alone: stores (store.h), in which ranks find each other; groups, here; and
 * parallelism (parallel.h), which lays one model on many ranks.
 *
 * Every wait has a deadline. After its first failure a group is dead: the failing call and every
 * later one is an error that names group, operation, number and the missing rank, on every rank
 * that is left. A rank that has an error pending when it meets a collective aborts the group, so
 * that its peers get an error and do not hang.
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
     * them, else what OpenMPI, MPICH or Slurm set, else one rank.
     * "tcp://HOST:PORT": rank 0 serves the store there.  "file:///PATH": on a shared file system; a
     * file that an earlier job has used is an error. The last two need rank and ranks. */
    const char *init;
    int rank, ranks; /* -1: from the environment */
    /* NULL: shm on one host, gloo between hosts; for tensors on devices, where the ranks use any,
     * nccl if each rank has its own GPU and NCCL is there, else staged. Or "shm", "gloo", "nccl",
     * "staged", "gloo+nccl", … (docs/distributed.md). */
    const char *engine;
    /* TN_CPU: the thread's default device stays as it is. TN_CUDA: it becomes the GPU LOCAL_RANK,
     * modulo their number on this host; TN_EDEVICE when there is none. */
    tn_device_kind device;
    /* Network interface or own address for gloo: TERN_INTERFACE; NULL: 127.0.0.1 on one host, else
     * what reaches the store, unless that is a public address (TN_EPEER): the connections carry no
     * secret (docs/security.md). */
    const char *interface;
    double timeout; /* seconds an operation may take: 600, or TERN_TIMEOUT */
    bool checked;   /* compare operations before they run: false, or TERN_CHECKED=1 */
    bool signals;   /* SIGUSR1 dumps the flight recorder: true */
    /* true: tn_set_threads(cores / ranks of this host) unless OMP_NUM_THREADS is set */
    bool threads;
    bool from_defaults;
} tn_dist_options;
TN_API tn_dist_options tn_dist_defaults(void);

/* Meets the other ranks. The group belongs to the library until tn_dist_finish. A second call gives
 * the same group. NULL after an error: TN_EPEER (names who did not come),
 * TN_EVALUE (a variable), … */
TN_API tn_group *tn_dist_init(tn_dist_options options);
TN_API tn_group *tn_world(void); /* what tn_dist_init made; NULL before, and after the end */
TN_API void tn_dist_finish(void);

TN_API int tn_local_rank(void);       /* among the ranks of this host; 0 when alone */
TN_API int tn_restart_count(void);    /* how often the launcher has restarted the job; 0 at first */
TN_API tn_store *tn_dist_store(void); /* the world's store; NULL before tn_dist_init */

/* Runs f(group, user) in `ranks` threads (1 to 1024), each one rank of a local group: for tests and
 * to see data parallelism without processes. An error of any rank ends the others and is raised
 * here. */
TN_API tn_status tn_local_run(int ranks, void (*f)(tn_group *world, void *user), void *user);

/* ---- Groups ---------------------------------------------------------------------------------- */

/* A group is used by one thread: the first that calls an operation. A call from another is
 * TN_ESTATE, and so is one in a child of fork, where tn_group_free and tn_dist_finish end nothing
 * of the parent's. NULL is a group of one rank everywhere. */
TN_API int tn_group_rank(const tn_group *g); /* 0 … size-1; -1: not a member */
TN_API int tn_group_size(const tn_group *g);
TN_API const char *tn_group_name(const tn_group *g);
TN_API int tn_group_world_rank(const tn_group *g, int rank); /* a member's rank in the world */
TN_API const char *tn_group_engine(const tn_group *g);       /* "shm" */
TN_API void tn_group_set_timeout(tn_group *g, double seconds);

/* A group of some ranks of `parent`; every rank of parent calls it, in the same order, with the
 * same list. Ranks are sorted. Who is not in the list gets a group that refuses operations. */
TN_API tn_group *tn_group_new(tn_group *parent, const int *ranks, int n);
/* Parts parent into groups, by one exchange: this rank's is that of the ranks which give the same
 * colour, in parent's order. Every rank of parent calls it. A negative colour: this rank is in no
 * group, and gets one of size 0 that refuses operations. */
TN_API tn_group *tn_group_split(tn_group *parent, int colour);
/* The world is not freed by this (TN_ESTATE) but by tn_dist_finish. A group that was freed is
 * TN_ESTATE in everything that would use it. */
TN_API void tn_group_free(tn_group *g);

/* Gives up: this rank's and every other rank's operations on g fail with this
 * reason, now and later. */
TN_API void tn_group_abort(tn_group *g, const char *reason);

/* A tensor in memory that the group's operations need not copy (a plain one where the engine has
 * none). Every rank calls in the same order with the same shape and dtype. Must die before g does.
 * A child of fork reads the parent's memory in it, and what it writes there is its own. */
TN_API tn_tensor *tn_group_empty(tn_group *g, tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_group_empty_on(tn_group *g, tn_device device, tn_dims dims, tn_dtype dtype);

/* ---- Operations ------------------------------------------------------------------------------- *
 *
 * All ranks of a group call the same operations in the same order; with nccl that holds for all
 * groups of a thread together, as far as ranks share them. A call returns at once; the
 * tensors belong to the operation until tn_work_wait. Tensors are contiguous: f32 f64 bf16 f16 i64
 * i32 u8 i8. Not recorded (below are those that are). Engines reduce in the order of the ranks, so
 * a rerun gives the same bits, and so does another engine; nccl has its own order, which depends on
 * the hardware.
 *
 * Tensors may be on a device: those of one call on the same one, and of one kind on all ranks. Such
 * an operation comes after what was queued on the device before the call, and what is queued after
 * tn_work_wait sees its result. The wait itself blocks only until all of the operation is queued
 * (nccl: at once; staged: when the last bytes are on their way back to the device). So what fails
 * later is raised by the group's next call, and tensors computed from the result until then are
 * worthless; tn_barrier returns when every operation before it has ended. */

/* Waits at most `timeout` seconds (0: until the operation's own deadline), releases w. The error of
 * the operation is raised here. Waiting in any order is fine. NULL, which a call gives when it
 * failed or had nothing to do, is the pending error or TN_OK. A wait that times out aborts the
 * group: its operation still has the tensors. */
TN_API tn_status tn_work_wait(tn_work *w, double timeout);
TN_API bool tn_work_done(const tn_work *w); /* whether waiting would not block */

/* how: TN_SUM, TN_MEAN, TN_PRODUCT, TN_MIN, TN_MAX. Sums and products of integers wrap; MEAN rounds
 * towards zero, and wraps for i64 alone. NaN wins in MIN and MAX; over nccl it may lose. */
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
/* A send may wait for its recv: of two ranks that exchange,
 * one sends first and one receives first. */
TN_API tn_work *tn_send(tn_group *g, tn_tensor *t, int to);
TN_API tn_work *tn_recv(tn_group *g, tn_tensor *t, int from);

TN_API tn_status tn_barrier(tn_group *g);
/* A barrier that goes through the store, so it works when the engine hangs: names the ranks that
 * did not come within `timeout` seconds. */
TN_API tn_status tn_monitored_barrier(tn_group *g, double timeout);

/* Bytes of any length. Broadcast: root's; *data is malloc'ed on the others. Gather: data[N],
 * bytes[N] on every rank, each malloc'ed. tn_bytes_free frees one. */
TN_API tn_status tn_broadcast_bytes(tn_group *g, void **data, size_t *bytes, int root);
TN_API tn_status tn_all_gather_bytes(tn_group *g, const void *data, size_t bytes, void **all,
                                     size_t *all_bytes);
TN_API void tn_bytes_free(void *data);

/* (sum over ranks of `sum`) / (sum over ranks of `count`): a loss or a metric over the global
 * number of tokens, not a mean of means. NaN after an error and where the count is 0. */
TN_API double tn_group_mean(tn_group *g, double sum, double count);

/* ---- Operations with gradients (x requires one: so does the result) -------------------------- *
 *
 * Named by what travels forward. In the first four every rank's x and result are its own, and the
 * loss is the sum of all ranks' losses. The last two go around the part of a network that is split
 * between ranks (Shoeybi et al. 2019, arXiv:1909.08053): outside it all ranks hold the same x and
 * compute the same loss. Megatron calls them copy_to and reduce_from the parallel region. */

TN_API tn_tensor *tn_dist_all_reduce(tn_group *g, tn_tensor *x); /* the sum; backward: all_reduce */
/* (…) -> (N, …); backward: reduce_scatter */
TN_API tn_tensor *tn_dist_all_gather(tn_group *g, tn_tensor *x);
/* (N, …) -> (…): the sum of all ranks' x[rank]; backward: all_gather */
TN_API tn_tensor *tn_dist_reduce_scatter(tn_group *g, tn_tensor *x);
/* (N, …) -> (N, …): row r is rank r's x[rank]; backward: all_to_all */
TN_API tn_tensor *tn_dist_all_to_all(tn_group *g, tn_tensor *x);

TN_API tn_tensor *tn_dist_copy(tn_group *g, tn_tensor *x); /* x, nothing travels; backward: sum */
/* the sum of all ranks' parts; backward: the gradient as it is, nothing travels */
TN_API tn_tensor *tn_dist_sum_parts(tn_group *g, tn_tensor *x);

/* Along dimension dim (from the end where it is negative), N pieces of one size. In the first two
 * every rank's x and result are its own; x of slice and the result of join are one value that all
 * ranks hold alike, as with copy and sum_parts. TN_ESHAPE: a size that N does not divide;
 * TN_EINDEX: dim. */
/* (…, n, …) -> (…, N n, …): all ranks' x, one after the other; backward: scatter_dim */
TN_API tn_tensor *tn_dist_gather_dim(tn_group *g, tn_tensor *x, int dim);
/* (…, N n, …) -> (…, n, …): this rank's piece of the sum of all x; backward: gather_dim */
TN_API tn_tensor *tn_dist_scatter_dim(tn_group *g, tn_tensor *x, int dim);
/* (…, N n, …) -> (…, n, …): this rank's piece, a view; nothing travels; backward: join */
TN_API tn_tensor *tn_dist_slice(tn_group *g, tn_tensor *x, int dim);
/* (…, n, …) -> (…, N n, …): all ranks' x, alike on all; backward: slice */
TN_API tn_tensor *tn_dist_join(tn_group *g, tn_tensor *x, int dim);

/* ---- Meshes: ranks in named dimensions ------------------------------------------------------- */

#define TN_MESH_DIMS 5
typedef struct tn_mesh tn_mesh;

/* The world's ranks in row-major order: sizes {2, 4}, names {"dp", "tp"}: rank r is (r / 4, r % 4).
 * Every rank calls. The product of sizes is the size of g, which outlives the mesh. */
TN_API tn_mesh *tn_mesh_new(tn_group *g, int n, const int *sizes, const char *const *names);
/* Of the ranks along this dimension; or, with several names and spaces between, of those that
 * differ in these dimensions alone, in g's order: "replicate shard" are the ranks with batches of
 * their own. The first call for a product makes its group: every rank calls. Belongs to m. NULL
 * after an error, and where g is. */
TN_API tn_group *tn_mesh_group(tn_mesh *m, const char *names);
/* this rank in that group, which is not made for it; -1 after an error */
TN_API int tn_mesh_rank(tn_mesh *m, const char *names);
TN_API void tn_mesh_free(tn_mesh *m);

/* ---- Flight recorder ------------------------------------------------------------------------- */

/* The last 1000 operations of this process: group, number, name, shape, state, times. Written by
 * itself on a time-out and on SIGUSR1, to TERN_FLIGHT_DIR/tern-flight-RANK.txt; without that
 * variable to tern-flight-RANK-PID.txt in $XDG_RUNTIME_DIR/tern, or else in tern-UID in $TMPDIR or
 * /tmp, which must be this user's alone. The log says where; it is a new file in any case, and
 * links are not followed. */
TN_API void tn_flight_dump(FILE *file);
/* As a trace for chrome://tracing and Perfetto. */
TN_API tn_status tn_flight_trace(const char *path);
/* Adds an event of the program's own ("backward") from begin to now,
 * to be seen beside the operations. */
TN_API void tn_flight_mark(const char *name, double begin);
TN_API double tn_flight_now(void);

#ifdef __cplusplus
}
#endif
#endif
