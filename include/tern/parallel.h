/* How one model is laid out on many ranks.
 *
 *     tn_group *world = tn_dist_init(tn_dist_defaults());     // one rank when nothing is set
 *     ...
 *     tn_ddp(&net, world, tn_ddp_defaults());                 // before the optimiser is made
 *     ... the loop of one process, unchanged ...
 *     tn_dist_finish();
 *
 * DDP hangs on a module and keeps the gradients of all ranks equal; FSDP cuts the module itself, so
 * that each rank has 1/N of it. It also has what such a loop needs: a rank's share of the data,
 * checkpoints, learning rates for N ranks.
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
 * Each rank has the whole model and its own batch. Gradients are put together in buckets, which
 * travel while backward still computes; when tn_backward returns, every rank has the same. */

/* One bucket, as a hook sees it. */
typedef struct tn_ddp_bucket {
    tn_tensor *flat; /* (elements), f32 as a rule: the gradients, and zeros in between */
    int index;       /* of it among the buckets, in the order in which they travel */
    bool last;       /* no other bucket follows in this backward */
    tn_tensor *const *gradients; /* [count]: views of flat, in the shapes of the parameters */
    int count;
    tn_reduction how;   /* TN_MEAN or TN_SUM: what `flat` becomes, over the ranks */
    tn_tensor *arrived; /* the result of the stage before, where that is not flat; else NULL */
} tn_ddp_bucket;

typedef struct tn_ddp_options {
    int64_t bucket_bytes; /* 25 MiB */
    int64_t first_bucket; /* 1 MiB: the first to be ready starts early */
    /* false: gradients are averaged. true: summed, for a loss that the program divides by the
     * global number of tokens */
    bool sum;
    bool find_unused; /* false: a parameter that backward does not reach is an error */
    /* true: all take rank 0's buffers before the first forward that records after attaching and
     * after each synchronised backward (not before every: a backward may need those of several
     * forwards) */
    bool broadcast_buffers;
    bool join;    /* false; true: ranks may have fewer batches, see tn_ddp_join */
    bool rebuild; /* true: after the first backward buckets follow the order of readiness */
    bool overlap; /* true; false: buckets travel when backward is done (to measure) */
    /* What travels, per bucket; NULL: tn_all_reduce of the bucket. Called with stage 0 when the
     * bucket is complete, and with 1, 2, … each time the work that it returned has arrived, until
     * it returns NULL: by then `flat` holds the reduction. Stages after the first come at the end
     * of backward, each for all buckets in their order, so that ranks issue the same operations;
     * every rank's hook returns as many. What it needs between them it keeps in `user`, by `index`;
     * of works the last one's result is there (`arrived`). See tn_ddp_bf16. */
    tn_work *(*hook)(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user);
    void *hook_user;
    bool from_defaults;
} tn_ddp_options;
TN_API tn_ddp_options tn_ddp_defaults(void);

/* Hangs data parallelism on module m, until m is finished. Compares shapes, gives every rank rank
 * 0's parameters and buffers, and keys the default generator by the global micro-batch, so that N
 * ranks draw the dropout of one rank that accumulates N micro-batches. Every rank calls; before the
 * optimiser is made. Belongs to m. NULL after an error: TN_EMISMATCH names the parameter. */
TN_API tn_ddp_state *tn_ddp(void *m, tn_group *g, tn_ddp_options options);

/* With options.join: a rank whose data has ended stays until every rank's has, taking part with
 * gradients of zero; then all have the parameters and buffers of the last that trained, and the
 * state and the steps of its optimiser (NULL, on every rank: none, or one without state). */
TN_API tn_status tn_ddp_join(tn_ddp_state *ddp, tn_optim *optim);

/* A hook: the bucket travels in bf16 and is reduced in f32 (half the bytes). */
TN_API tn_work *tn_ddp_bf16(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user);

typedef struct tn_ddp_stats {
    int64_t steps;  /* backwards that were synchronised */
    int buckets;    /* now */
    int64_t bytes;  /* in them */
    double waiting; /* seconds that backward waited at its end, all steps together */
    /* seconds that buckets travelled, all steps together; on a device: as far as the host knew when
     * it stopped waiting */
    double traffic;
} tn_ddp_stats;
TN_API tn_ddp_stats tn_ddp_statistics(const tn_ddp_state *ddp);

/* The same without buckets, overlap or options: after each backward one all-reduce per parameter.
 * To read first, and to compare with. */
TN_API tn_status tn_ddp_naive(void *m, tn_group *g);

/* From now on each batch norm in m and below trains with the statistics of all ranks of g (NULL: of
 * the world): N ranks compute what one would on all their samples, gradients too (DDP has their
 * mean). Every rank calls such a module as often as the others. g must live as long as m. */
TN_API tn_status tn_sync_batch_norm(void *m, tn_group *g);

/* ---- Sharding (ZeRO, FSDP) -------------------------------------------------------------------- *
 *
 * Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277.
 *
 * Each rank keeps 1/N of every parameter, of its gradient and of what the optimiser makes of it.
 * The parameters of a unit (a block, as a rule) travel together: they are gathered before the unit
 * runs, in forward and in backward, and released after it; its gradients are summed and scattered
 * as soon as its backward is over. The same bits as data parallelism.
 *
 *     tn_fsdp(&gpt, world, NULL, TN_WITH(tn_fsdp, .units = "h.*"));   // before the optimiser
 *     ... the loop of one process, unchanged ...
 *
 * Between uses a parameter's field holds a tensor without bytes (TN_ESTATE in whatever reads it);
 * what is here of it is tn_entry.stored. A module reads the parameters of its own unit, and of the
 * units around it: what a forward takes out of another unit may not be there. Nor are parameters
 * where a gradient is differentiated again (create_graph), but at stages 1 and 2 and in TN_WHOLE.
 *
 * Every rank calls the modules in the same order, also where nothing is recorded. An error of one
 * rank in the middle of a step ends the group, and so does a rank whose data has ended: the others
 * get an error that names it. */

typedef struct tn_fsdp_options {
    int stage; /* 3: parameters, gradients, state are cut; 2: gradients and state; 1: state alone */
    /* Which modules are units: paths with spaces between, where * is anything but a dot ("h.*",
     * "h.*.attn h.*.mlp"); NULL: modules of kind "block",
     * or of one that ends in "_block"; "": none. What is in no unit is the last
     * unit, which stays whole from the module's forward to the end of its backward. Where units are
     * in units, parameters are of the innermost; a tied one is of the lowest that has all its
     * names. */
    const char *units;
    const char *ignore; /* parameters that stay whole and are all-reduced, a list; NULL: none */
    int prefetch;       /* 1: units that are gathered ahead, forward and backward */
    bool keep_last;     /* true: a unit stays whole until the next one is needed, and so the last of
                         * a forward until its backward, which comes first */
    bool sum;           /* as in tn_ddp_options, and the next two */
    /* Ranks may have other gradients, but call the same units; until the end of backward gradients
     * stay whole, 4 bytes per parameter. */
    bool find_unused;
    bool broadcast_buffers; /* true */
    bool offload; /* false; true: parts, gradients and state are on the CPU, and stepped there */
    bool from_defaults;
} tn_fsdp_options;
TN_API tn_fsdp_options tn_fsdp_defaults(void); /* stage 3, prefetch 1, keep_last, buffers */

/* Cuts module m over the ranks of `shard`, until m is finished. With `replicate` (NULL: none), the
 * other dimension of a mesh, there are as many copies of this as that group has ranks: gradients
 * are summed over a copy's ranks, and the parts of these sums over the copies, whose micro-batches
 * follow each other. Compares modules and options, gives every rank rank 0's parameters and
 * buffers, and keys the default generator as tn_ddp does. Every rank calls; after
 * tn_module_set_precision and tn_module_to, before the optimiser is made. A module that was built
 * under TN_DEFER_INIT is never whole: each rank makes its parts alone, as rank 0 would. What m is
 * made of may be frozen and thawed later.
 *
 * Belongs to m. NULL after an error: TN_EMISMATCH names the difference; TN_ESTATE: an optimiser
 * holds a parameter, a parameter has hooks or a gradient buffer, something in or around m is
 * parallel already; TN_EVALUE: an option, units that no module is named by, a rank that is not in
 * the group. */
typedef struct tn_fsdp_state tn_fsdp_state;
TN_API tn_fsdp_state *tn_fsdp(void *m, tn_group *shard, tn_group *replicate,
                              tn_fsdp_options options);

/* The same parameter by parameter, with nothing ahead and no options: units as without
 * tn_fsdp_options.units, gradients are averaged. To read first, and to compare with. */
TN_API tn_status tn_fsdp_naive(void *m, tn_group *shard);

/* Bytes and messages of this rank. */
typedef struct tn_fsdp_stats {
    int64_t units;             /* with the last, if anything is in it */
    int64_t gathers, scatters; /* messages so far */
    int64_t parts;             /* bytes of its parts of parameters, in both dtypes under a policy */
    int64_t buffers;           /* bytes that hold whole gradients until they are scattered */
    int64_t whole, most_whole; /* bytes of gathered parameters: now, and at most so far */
    double waiting;            /* seconds that it waited for messages */
} tn_fsdp_stats;
TN_API tn_fsdp_stats tn_fsdp_statistics(const tn_fsdp_state *fsdp);

/* ---- Scopes, whatever is attached ------------------------------------------------------------ */

/* Until the `}`, backwards of m add to this rank's gradients and nothing travels: for all
 * micro-batches of a step but the last. Asks whatever is attached to m and to modules below it, and
 * is nothing where nothing is, or m is NULL; scopes may be nested. TN_ESTATE for a part of a module
 * that is attached as a whole. It takes the module, not what tn_ddp returned (TN_EVALUE). */
#define TN_NO_SYNC(m)                                                                 \
    __attribute__((cleanup(tn_no_sync_end), unused)) void *TN__UNIQUE(tn__no_sync_) = \
        tn_no_sync_begin(m)
TN_API void *tn_no_sync_begin(void *m); /* gives what tn_no_sync_end takes; NULL: nothing to end */
TN_API void tn_no_sync_end(void **scope);

/* What backwards of m under TN_NO_SYNC have kept travels now, as at the end of a backward without
 * it: for those whose last backward is not known (a pipeline's, which runs several stages). Every
 * rank calls. Asks whatever is attached to m and to modules below it, and is nothing where nothing
 * is. What has travelled already stays as it is. TN_ESTATE: inside a backward, of a part of a
 * module that is attached as a whole, or where a gradient is missing, by name; the other ranks get
 * an error then. */
TN_API tn_status tn_sync_gradients(void *m);

/* Until the `}`, all that m and modules below it are made of is whole, also in the fields: to
 * evaluate, to generate, to look. What is written into the fields is lost, unless nothing was cut.
 * Every rank calls. */
#define TN_WHOLE(m) \
    __attribute__((cleanup(tn_whole_end), unused)) void *TN__UNIQUE(tn__whole_) = tn_whole_begin(m)
TN_API void *tn_whole_begin(void *m);
TN_API void tn_whole_end(void **scope);

/* ---- Data, checkpoints, learning rates ------------------------------------------------------- */

/* This rank's share of an order, by the rules of PyTorch's DistributedSampler: n = ceil(L / N)
 * examples each, the order's head repeated to fill up; with drop_last the tail is left out instead.
 * The loader's batches say which examples are real (tn_batch.valid). */
TN_API tn_sampler tn_distributed_sampler(tn_group *g, tn_sampler order, bool drop_last);

/* Rank 0 writes, all wait, all get the error. A model of which a rank has parts is TN_EUNSUPPORTED:
 * tn_saver_save. */
TN_API tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path);
/* Rank 0 reads the file once; the others get the bytes from it and need no file. Nothing is loaded
 * on any rank unless all have found these bytes right, and the same (by their digest). The loader's
 * place is converted when the number of ranks has changed. */
TN_API tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path);

/* A learning rate for N times the batch: N lr (Goyal et al. 2017, arXiv:1706.02677) or sqrt(N) lr.
 * To be used with a warm-up: tn_schedule_constant, tn_schedule_cosine. */
TN_API double tn_lr_linear(double lr, int n);
TN_API double tn_lr_sqrt(double lr, int n);

/* ---- Checkpoints in parts ---------------------------------------------------------------------
 *
 *     tn_saver *saver = tn_saver_new(world, "run", tn_saver_defaults());
 *     tn_checkpoint c = {.model = &net, .optim = opt, .loader = loader};
 *     bool found;
 *     tn_status status = tn_saver_load(saver, &c, &found);   // where there is one
 *     ...
 *     c.step = step;
 *     status = tn_saver_save(saver, &c);                     // every so many steps
 *     ...
 *     tn_saver_free(saver);
 *
 * Each rank writes the elements that it has, so that a model which no rank has whole is saved too,
 * and nothing travels. A step is a folder, folder/step-000100, which takes this name when every
 * rank's part is safe on disk: if a rank is killed, at any time, the step before or the new one is
 * there, whole. It loads onto any number of ranks and any way of laying the model on them.
 *
 * All ranks must see the same folder. The first save makes it, in a folder that must be there. One
 * job at a time saves to it (TN_EIO); others may read. What goes wrong on one rank, a full disk for
 * instance, is an error on all, and names it. The ranks agree through the group's store, which must
 * live as long as the job saves. */

typedef struct tn_saver tn_saver;
typedef struct tn_saver_options {
    int keep;       /* 2: committed steps that stay */
    bool behind;    /* true: a save copies what this rank writes and returns; a thread writes */
    double timeout; /* seconds until all ranks must have written: 600, or TERN_TIMEOUT */
    bool from_defaults;
} tn_saver_options;
TN_API tn_saver_options tn_saver_defaults(void);

/* Every rank of the group makes its savers in the same order; the group must outlive them. NULL
 * after an error. */
TN_API tn_saver *tn_saver_new(tn_group *world, const char *folder, tn_saver_options options);

/* Every rank, at the same step; a rank that does not come is named after the time-out. Waits for
 * the save before and raises what went wrong with it, on all ranks; then nothing is saved. A step
 * that is there is replaced. With `behind` the copies stay until tn_saver_free: the next save
 * fills them again. What c points to may change as soon as this returns. */
TN_API tn_status tn_saver_save(tn_saver *s, const tn_checkpoint *c);
TN_API tn_status tn_saver_wait(tn_saver *s);

/* Loads the newest committed step, the one with the highest number; else the newest checkpoint of
 * one file in the folder (tn_checkpoint_save); the folder may also be the path of such a file.
 * *found false: there is none, and nothing has changed. Every rank calls, and reads only what meets
 * its own parts. As tn_dist_load does it: what says which run it is, is compared, a loader's place
 * is converted, and nothing is loaded on any rank unless all have found it right. */
TN_API tn_status tn_saver_load(tn_saver *s, tn_checkpoint *c, bool *found);
/* Removes what tn_saver_load would find, all of it, for a run that starts over: a higher step of
 * another run would count as the newest. Every rank calls, and gets the error. */
TN_API tn_status tn_saver_clear(tn_saver *s);
TN_API void tn_saver_free(tn_saver *s); /* waits, and raises what went wrong; NULL is fine */

/* The whole weights of m, however they are split over ranks, in the file that tn_save would write:
 * by rank 0, which has one parameter at a time. Every rank calls, and gets the error. */
TN_API tn_status tn_dist_export(tn_group *world, void *m, const char *path);

/* The same as a folder, tn_lm_save_with's, of a language model of models.h. */
TN_API tn_status tn_dist_save_lm(tn_group *world, void *m, const char *folder,
                                 tn_lm_save_options options);
/* And back: tn_lm_load_weights on every rank, each of which reads the elements that it has. Nothing
 * changes on any unless all have found the folder right. */
TN_API tn_status tn_dist_load_lm(tn_group *world, void *m, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
