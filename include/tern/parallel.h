/* How one model is laid out on many ranks.
 *
 *     tn_group *world = tn_dist_init(tn_dist_defaults());     // one rank if nothing is set
 *     ...
 *     tn_ddp(&net, world, tn_ddp_defaults());                 // before the optimiser is made
 *     ... the loop of one process, unchanged ...
 *     tn_dist_finish();
 *
 * DDP attaches to a module and keeps the gradients of all ranks equal; FSDP shards the module
 * itself, so that each rank has 1/N of it; local SGD lets ranks train alone, and averages their
 * weights now and then. This header also has what such a loop needs: a rank's share of the data,
 * checkpoints.
 *
 * Read next: docs/distributed.md, distributed/parallel/README.md.
 */
#ifndef TERN_PARALLEL_H
#define TERN_PARALLEL_H

#include "distributed.h"
#include "models.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_ddp_state tn_ddp_state;

/* ---- Data parallelism (DDP; Li et al. 2020, arXiv:2006.15704) --------------------------------- *
 *
 * Each rank has the whole model and its own batch. Gradients are collected in buckets, which are
 * sent while backward is still computing; when tn_backward returns, every rank has the same. */

/* One bucket, as a hook sees it. */
typedef struct tn_ddp_bucket {
    tn_tensor *flat;             /* (elements), usually f32: the gradients, and zeros in between */
    int index;                   /* of the bucket, in the order of sending */
    bool last;                   /* the last bucket of this backward */
    tn_tensor *const *gradients; /* [count]: views of flat, in the shapes of the parameters */
    int count;
    tn_reduction how;   /* TN_MEAN or TN_SUM: how `flat` is reduced over the ranks */
    tn_tensor *arrived; /* the previous stage's result if it is not in flat; else NULL */
} tn_ddp_bucket;

typedef struct tn_ddp_options {
    int64_t bucket_bytes; /* 25 MiB; the first one has at most 1 MiB, so that it is sent early.
                           * After the first backward they follow the order of readiness */
    /* false: gradients are averaged. true: summed, for a loss that the program divides by the
     * global number of tokens */
    bool sum;
    bool find_unused; /* false: it is an error if backward does not reach a parameter */
    /* true: all take rank 0's buffers before the first recorded forward after attaching and after
     * each synchronised backward (not before every forward: a backward may need the buffers of
     * several) */
    bool broadcast_buffers;
    bool join;    /* false; true: ranks may have fewer batches, see tn_ddp_join */
    bool overlap; /* true; false: buckets are sent after backward (to measure) */
    /* Reduces one bucket; NULL: tn_all_reduce. Called with stage 0 when the bucket is complete, and
     * with 1, 2, … each time the work that it returned is done, until it returns NULL: by then
     * `flat` must hold the reduction. Stages after the first run at the end of backward, each for
     * all buckets in order, so that ranks issue the same operations; every rank's hook must return
     * equally many. It can keep state between stages in `user`, by `index`; `arrived` has the last
     * work's result. See tn_ddp_bf16, and examples/29_powersgd.c. */
    tn_work *(*hook)(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user);
    void *hook_user;
    bool from_defaults;
} tn_ddp_options;
TN_API tn_ddp_options tn_ddp_defaults(void);

/* Attaches data parallelism to module m, until m is finished. Compares shapes, broadcasts rank 0's
 * parameters and buffers, and keys the default generator by the global micro-batch, so that N ranks
 * draw the same dropout as one rank that accumulates N micro-batches. Every rank calls, before the
 * optimiser is made. Owned by m. NULL after an error: TN_EMISMATCH names the parameter. */
TN_API tn_ddp_state *tn_ddp(void *m, tn_group *g, tn_ddp_options options);

/* With options.join: a rank whose data has ended calls this to take part with zero gradients until
 * every rank's data has ended; then all get the parameters and buffers of the last rank that
 * trained, and its optimiser's state and step count (NULL, on every rank: none, or one without
 * state). */
TN_API tn_status tn_ddp_join(tn_ddp_state *ddp, tn_optim *optim);

/* A hook: sends the bucket in bf16 and reduces it in f32 (half the bytes). */
TN_API tn_work *tn_ddp_bf16(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user);

/* A hook: the same in f16. Gradients are divided by the number of ranks N before they are cast, and
 * a sum is multiplied by N after it has arrived. So nothing overflows where each rank's gradient is
 * at most 65504; what does becomes infinity or NaN on every rank, and tn_scaler_step skips that
 * step. Parts below 3e-8 vanish. */
TN_API tn_work *tn_ddp_f16(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user);

typedef struct tn_ddp_stats {
    int64_t steps;  /* synchronised backwards */
    int buckets;    /* now */
    int64_t bytes;  /* in them */
    int64_t sent;   /* bytes that they, or their hook, gave to the group, over all steps */
    double waiting; /* seconds that backward waited at its end, over all steps */
} tn_ddp_stats;
TN_API tn_ddp_stats tn_ddp_statistics(const tn_ddp_state *ddp);

/* The same without buckets, overlap or options: after each backward one all-reduce per parameter.
 * For reading first, and for comparison. */
TN_API tn_status tn_ddp_naive(void *m, tn_group *g);

/* From now on each batch norm in m and below trains with the statistics of all ranks of g (NULL: of
 * the world): N ranks compute what one would on all their samples, gradients too (with DDP, their
 * mean). Every rank must call such a module equally often. g must live as long as m. */
TN_API tn_status tn_sync_batch_norm(void *m, tn_group *g);

/* ---- Local SGD, DiLoCo ------------------------------------------------------------------------ *
 *
 * Stich 2018, arXiv:1805.09767; Douillard et al. 2023, arXiv:2311.08105.
 *
 * Each rank takes its own steps, with its own data and optimiser, and nothing is sent. After every
 * few steps the weights of all ranks become the same again: their mean (local SGD), or a step of an
 * outer optimiser, SGD with momentum, whose gradient is the last common weights minus that mean
 * (DiLoCo).
 *
 *     tn_local_sgd *outer = tn_local_sgd_new(&net, world, TN_WITH(tn_diloco, .every = 100));
 *     ...
 *         tn_optim_step(opt);
 *         tn_optim_zero_grad(opt);
 *         tn_local_sgd_step(outer);           // in every step; it counts them
 *     ...
 *     tn_local_sgd_sync(outer);               // after the last: the same weights on all ranks
 *     tn_module_free(outer);
 *
 * Instead of tn_ddp; or above it, between hosts whose own ranks tn_ddp keeps equal: g is then this
 * rank and its counterparts on the other hosts (a dimension of a mesh). */

typedef struct tn_local_sgd tn_local_sgd;
typedef struct tn_local_sgd_options {
    int64_t every;   /* 16 steps */
    double lr;       /* 1; with momentum 0: the mean itself, and no outer state */
    double momentum; /* 0 */
    bool nesterov;   /* false */
    bool from_defaults;
} tn_local_sgd_options;
TN_API tn_local_sgd_options tn_local_sgd_defaults(void);
/* every 500, lr 0.7, momentum 0.9, nesterov */
TN_API tn_local_sgd_options tn_diloco_defaults(void);

/* For the parameters of m that require a gradient now. Compares m and options, and all take rank
 * 0's parameters and buffers. m must outlive it, and g its last use. Every rank calls, and should
 * then draw other random numbers than the others (dropout).
 *
 * It is itself a module, whose buffers are the outer state: the steps since the last
 * synchronisation, the last common weights, their momentum. Between two synchronisations ranks
 * differ, and their optimisers always do. So each rank saves a checkpoint of its own, and with it
 * this: with tn_save, or as a child beside m in a module that is tn_checkpoint.model. A run resumed
 * with the same ranks then has the bits of one that was not interrupted. A saver, a tn_run and
 * tn_dist_save take one rank's copy of each parameter and state as if all were equal, and warn
 * if they are not.
 *
 * NULL after an error: TN_EVALUE: a bad option, or this rank is not in g; TN_EMISMATCH: ranks
 * differ; TN_EUNSUPPORTED: m is sharded, or some of it is on other ranks. */
TN_API tn_local_sgd *tn_local_sgd_new(void *m, tn_group *g, tn_local_sgd_options options);

/* After each step of the optimiser: counts it, and synchronises after every `every` of them: m's
 * parameters as above, and rank 0's buffers for all. Every rank must take equally many steps; a
 * rank that is missing is an error on the others, as with tn_ddp, and so is calling it with an
 * error pending. */
TN_API tn_status tn_local_sgd_step(tn_local_sgd *l);
/* Synchronises now, unless there was no step since the last time. The next one is `every` steps
 * later. Every rank calls. */
TN_API tn_status tn_local_sgd_sync(tn_local_sgd *l);

typedef struct tn_local_sgd_stats {
    int64_t rounds; /* synchronisations of this object */
    int64_t sent;   /* bytes of parameters given to the group in them */
    double drift;   /* the distance of this rank's weights from the mean, before the last one */
    double waiting; /* seconds in all of them */
} tn_local_sgd_stats;
TN_API tn_local_sgd_stats tn_local_sgd_statistics(const tn_local_sgd *l);

/* ---- Sharding (ZeRO, FSDP) -------------------------------------------------------------------- *
 *
 * Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277.
 *
 * Each rank keeps 1/N of every parameter, of its gradient and of its optimiser state. The
 * parameters of a unit (usually a block) are sent together: they are gathered before the unit runs,
 * in forward and in backward, and released after it; its gradients are summed and scattered as soon
 * as its backward is over. The same bits as data parallelism.
 *
 *     tn_fsdp(&gpt, world, NULL, TN_WITH(tn_fsdp, .units = "h.*"));   // before the optimiser
 *     ... the loop of one process, unchanged ...
 *
 * Between uses a parameter's field holds a tensor without bytes (TN_ESTATE in whatever reads it);
 * this rank's part is tn_entry.stored. A module may read the parameters of its own unit and of the
 * units around it; those of another unit may not be gathered. Nor are parameters where a gradient
 * is differentiated again (create_graph), except at stages 1 and 2 and in TN_WHOLE.
 *
 * Every rank must call the modules in the same order, even when nothing is recorded. An error of
 * one rank in the middle of a step ends the group, and so does a rank whose data has ended: the
 * others get an error that names it. */

typedef struct tn_fsdp_options {
    int stage; /* 3: shards parameters, gradients, state; 2: gradients, state; 1: only state */
    /* Which modules are units: paths separated by spaces, where * matches anything but a dot
     * ("h.*", "h.*.attn h.*.mlp"); NULL: modules whose kind is "block" or ends in "_block"; "":
     * none. Parameters outside all units form the last unit, which stays whole from the module's
     * forward to the end of its backward. If units are nested, a parameter belongs to the
     * innermost; a tied one to the lowest that has all its names. */
    const char *units;
    const char *ignore; /* a list of parameters that stay whole and are all-reduced; or NULL */
    int prefetch;       /* 1: units gathered ahead, forward and backward */
    bool sum;           /* as in tn_ddp_options, and the next two */
    /* Ranks may reach different parameters, but must call the same units; gradients stay whole
     * until the end of backward, 4 bytes per parameter. */
    bool find_unused;
    bool broadcast_buffers; /* true */
    bool offload; /* false; true: parts, gradients and state are on the CPU, which steps them */
    bool from_defaults;
} tn_fsdp_options;
TN_API tn_fsdp_options tn_fsdp_defaults(void); /* stage 3, prefetch 1, buffers */

/* Shards module m over the ranks of `shard`, until m is finished. With `replicate` (NULL: none),
 * the other dimension of a mesh, there are as many copies of this as that group has ranks:
 * gradients are summed over a copy's ranks, and the parts of these sums over the copies, whose
 * micro-batches follow each other. Compares modules and options, broadcasts rank 0's parameters and
 * buffers, and keys the default generator as tn_ddp does. Every rank calls; after
 * tn_module_set_precision and tn_module_to, before the optimiser is made. A module built under
 * TN_DEFER_INIT is never whole: each rank makes only its own parts, with rank 0's values. Parts of
 * m may be frozen and unfrozen later.
 *
 * Owned by m. NULL after an error: TN_EMISMATCH names the difference; TN_ESTATE: an optimiser has a
 * parameter, a parameter has hooks or a gradient buffer, something in or around m is already
 * parallel; TN_EVALUE: a bad option, a path in `units` that matches no module, a rank that is not
 * in the group. */
typedef struct tn_fsdp_state tn_fsdp_state;
TN_API tn_fsdp_state *tn_fsdp(void *m, tn_group *shard, tn_group *replicate,
                              tn_fsdp_options options);

/* The same parameter by parameter, without prefetching or options: default units, averaged
 * gradients. For reading first, and for comparison. */
TN_API tn_status tn_fsdp_naive(void *m, tn_group *shard);

/* Bytes and messages of this rank. */
typedef struct tn_fsdp_stats {
    int64_t units;             /* including the last, if anything is in it */
    int64_t gathers, scatters; /* messages so far */
    int64_t parts;   /* bytes of this rank's parameter parts, in both dtypes under a policy */
    int64_t buffers; /* bytes that hold whole gradients until they are scattered */
    int64_t whole, most_whole; /* bytes of gathered parameters: now, and the peak */
    double waiting;            /* seconds spent waiting for messages */
} tn_fsdp_stats;
TN_API tn_fsdp_stats tn_fsdp_statistics(const tn_fsdp_state *fsdp);

/* ---- Scopes, for any of these ---------------------------------------------------------------- */

/* Until the `}`, backwards of m add to this rank's gradients and nothing is sent: for all
 * micro-batches of a step but the last. Applies to whatever is attached to m and to modules below
 * it, and does nothing if nothing is attached or m is NULL; scopes may be nested. TN_ESTATE for a
 * part of a module that is attached as a whole. It takes the module, not what tn_ddp returned
 * (TN_EVALUE). */
#define TN_NO_SYNC(m)                                                                 \
    __attribute__((cleanup(tn_no_sync_end), unused)) void *TN__UNIQUE(tn__no_sync_) = \
        tn_no_sync_begin(m)
TN_API void *tn_no_sync_begin(void *m); /* for tn_no_sync_end; NULL: nothing to end */
TN_API void tn_no_sync_end(void **scope);

/* Sends what backwards of m under TN_NO_SYNC have kept, as at the end of a backward without it: for
 * callers that do not know which backward is the last (a pipeline, which runs several stages).
 * Every rank calls. Applies to whatever is attached to m and to modules below it. Gradients already
 * sent do not change. TN_ESTATE: inside a backward, for a part of a module that is attached as a
 * whole, or if a gradient is missing, by name; the other ranks then get an error. */
TN_API tn_status tn_sync_gradients(void *m);

/* Until the `}`, all parameters of m and below are whole, in the fields too: to evaluate, generate
 * or inspect. Writes to the fields are lost, unless nothing is sharded. Every rank calls. */
#define TN_WHOLE(m) \
    __attribute__((cleanup(tn_whole_end), unused)) void *TN__UNIQUE(tn__whole_) = tn_whole_begin(m)
TN_API void *tn_whole_begin(void *m);
TN_API void tn_whole_end(void **scope);

/* ---- Data and checkpoints -------------------------------------------------------------------- */

/* This rank's share of an order, by the rules of PyTorch's DistributedSampler: n = ceil(L / N)
 * examples each, filled up with the head of the order; with drop_last the tail is left out instead.
 * The loader's batches say which examples are real (tn_batch.valid). */
TN_API tn_sampler tn_distributed_sampler(tn_group *g, tn_sampler order, bool drop_last);

/* Rank 0 writes, all wait, all get the error. A sharded model is TN_EUNSUPPORTED: use
 * tn_saver_save. */
TN_API tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path);
/* Rank 0 reads the file once; the others get the bytes from it and need no file. Nothing is loaded
 * on any rank unless the bytes are valid, and the same (by their digest), on all. The loader's
 * place is converted if the number of ranks has changed. */
TN_API tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path);

/* ---- Sharded checkpoints ----------------------------------------------------------------------
 *
 *     tn_saver *saver = tn_saver_new(world, "run", tn_saver_defaults());
 *     tn_checkpoint c = {.model = &net, .optim = opt, .loader = loader};
 *     bool found;
 *     tn_status status = tn_saver_load(saver, &c, &found);   // if there is one
 *     ...
 *     c.step = step;
 *     status = tn_saver_save(saver, &c);                     // every few steps
 *     ...
 *     tn_saver_free(saver);
 *
 * Each rank writes the elements that it has, so even a model that no rank has whole can be saved,
 * and nothing is sent. A step is a folder, folder/step-000100, which gets this name when every
 * rank's part is safe on disk: if a rank is killed, at any time, the previous step or the new one
 * is there, whole. It loads onto any number of ranks and any layout of the model.
 *
 * All ranks must see the same folder. The first save makes it; its parent must exist. Only one job
 * at a time saves to it (TN_EIO); others may read. A failure on one rank, a full disk for instance,
 * is an error on all, and names the rank. A saver has a group of its own: after a rank was lost, or
 * later than the time-out, each of its saves is that error. */

typedef struct tn_saver tn_saver;
typedef struct tn_saver_options {
    int keep;       /* 2: how many committed steps to keep */
    bool behind;    /* true: a save copies this rank's data and returns; a thread writes it */
    double timeout; /* seconds for all ranks to write: 600, or TERN_TIMEOUT */
    /* NULL; a command that rank 0 gives sh after each commit, with the step's folder as $1, for
     * instance to copy it to another host. It runs beside training, and not as a rank; while it
     * does, its step stays besides those of `keep`, and it is not started again, but for the last
     * step before tn_saver_free returns, which waits for it. If it fails, that is said, and
     * training goes on. Must live as long as the saver. */
    const char *after;
    bool from_defaults;
} tn_saver_options;
TN_API tn_saver_options tn_saver_defaults(void);

/* Every rank of the group calls; the group must outlive the saver. NULL after an error, on all. */
TN_API tn_saver *tn_saver_new(tn_group *world, const char *folder, tn_saver_options options);

/* Every rank calls, at the same step; a missing rank is named after the time-out. Waits for the
 * previous save and raises its errors, on all ranks; then nothing is saved. An existing step is
 * replaced. What c points to may change as soon as this returns. */
TN_API tn_status tn_saver_save(tn_saver *s, const tn_checkpoint *c);
TN_API tn_status tn_saver_wait(tn_saver *s);

/* Loads the newest committed step. *found false: there is none, and nothing has changed. Every rank
 * calls, and reads only what overlaps its own parts. As with tn_dist_load, which reads the files of
 * tn_checkpoint_save, the run's identity is compared, a loader's place is converted, and nothing is
 * loaded on any rank unless it is valid on all. */
TN_API tn_status tn_saver_load(tn_saver *s, tn_checkpoint *c, bool *found);
/* Removes all that tn_saver_load would find, for a run that starts over: a higher step of another
 * run would count as the newest. Every rank calls, and gets the error. */
TN_API tn_status tn_saver_clear(tn_saver *s);
TN_API void tn_saver_free(tn_saver *s); /* waits, and raises errors; NULL is fine */

/* Writes the whole weights of m, however they are sharded, to the file that tn_save would write;
 * rank 0 writes, and holds one parameter at a time. Every rank calls, and gets the error. */
TN_API tn_status tn_dist_export(tn_group *world, void *m, const char *path);

/* The same to a folder, like tn_lm_save_with, for a language model of models.h. */
TN_API tn_status tn_dist_save_lm(tn_group *world, void *m, const char *folder,
                                 tn_lm_save_options options);
/* The reverse: tn_lm_load_weights on every rank, each of which reads its own elements. Nothing
 * changes on any unless the folder is valid on all. */
TN_API tn_status tn_dist_load_lm(tn_group *world, void *m, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
