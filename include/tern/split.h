/* How one model's matrices and positions are split over ranks.
 *
 *     tn_tensor_parallel(&gpt, tp, tn_tp_defaults());   // each matrix over the ranks of tp
 *     tn_ddp(&gpt, dp, tn_ddp_defaults());              // and whole batches over those of dp
 *     ... the optimiser, and the loop of one process, unchanged ...
 *
 * A split model computes what one rank would, up to rounding. Sharding and data parallelism
 * (parallel.h) are attached afterwards, and apply to what each rank has.
 *
 * Read next: docs/splitting.md, distributed/parallel/tensor/styles.c.
 */
#ifndef TERN_SPLIT_H
#define TERN_SPLIT_H

#include "pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053) ------------------------------ */

typedef struct tn_tp_options {
    const tn_tp_rule *plan; /* NULL: the language model's own, tn_gpt_tp or tn_llama_tp */
    /* false; true: in training each rank has T / N of the positions between regions (Korthikanti et
     * al. 2022, arXiv:2205.05198): each sum becomes a gather and a scatter, and the activations
     * there take 1 / N. T is a multiple of N. */
    bool sequence;
    bool from_defaults;
} tn_tp_options;
TN_API tn_tp_options tn_tp_defaults(void);

/* Splits the matrices of m over the ranks of tp, until m is finished: a field holds this rank's
 * block from now on (tn_entry.layout), heads and hidden units are divided, and every rank of tp
 * gets the same batch and computes the same loss. Compares modules and options and gives every rank
 * rank 0's parameters and buffers; if m was built under TN_DEFER_INIT, each rank makes only its own
 * blocks. All ranks of tp draw the same dropout masks for what is the same on all of them: in the
 * first call of training, and after each evaluation, they take rank 0's default generator. In
 * between, a program draws from it on all of them or on none.
 *
 * Every rank calls; after tn_module_set_precision and tn_module_to, before tn_ddp, tn_fsdp and the
 * optimiser. tn_lm_loss never has the full logits; a direct call of the model gives all columns.
 * Every rank calls tn_generate, with the same prompts, options and callback results, and gets the
 * same text. tp must live as long as m. A model that is quantised afterwards (tn_quantize) can be
 * used but not saved: TN_EUNSUPPORTED.
 *
 * TN_EVALUE: no plan, a path that names nothing, a style that does not fit a module or its region;
 * TN_ESHAPE: a size that the ranks do not divide; TN_EMISMATCH: modules differ, or, in the first
 * call of training and of each evaluation, and while generating, tokens; TN_ESTATE: m is split or
 * parallel already, or an optimiser holds a parameter. After an error in the plan m is as it
 * was. */
TN_API tn_status tn_tensor_parallel(void *m, tn_group *tp, tn_tp_options options);

/* tn_cross_entropy_with for logits whose columns are split over the ranks of tp: (…, this rank's),
 * `classes` in all, split as tn_layout splits one piece. Labels (…) are of all classes, and the
 * same on all ranks, as is the loss. label_smoothing and weight: TN_EUNSUPPORTED. Its gradient
 * cannot be differentiated again. */
TN_API tn_tensor *tn_dist_cross_entropy(tn_group *tp, tn_tensor *logits, tn_tensor *labels,
                                        int64_t classes, tn_cross_entropy_options options);

/* ---- Context parallelism ---------------------------------------------------------------------
 *
 *     tn_context_parallel(&gpt, cp, TN_CP_HEADS);       // each sequence over the ranks of cp
 *     tn_ddp(&gpt, dp_cp, tn_ddp_defaults());           // gradients over those of both
 *
 * All ranks of cp get the same whole sequences; each computes with T / N of their T positions.
 * Positions meet only in attention, in one of two ways. */

typedef enum tn_cp_kind {
    /* Rank r has positions r T/N to (r + 1) T/N - 1. In attention, ranks exchange them for heads:
     * each attends with all positions of 1 / N of the heads (Ulysses; Jacobs et al. 2023,
     * arXiv:2309.14509). Attention gives the same bits as on one rank, and every rank has the same
     * work. T is a multiple of N, and N divides the heads of keys and values (of this rank's heads,
     * below tn_tensor_parallel).
     */
    TN_CP_HEADS,
    /* Keys and values of all positions are gathered. The positions are 2 N blocks, of which rank r
     * has r and 2 N - 1 - r, one that sees few keys and one that sees many, so that causal
     * attention is as much work on every rank (Grattafiori et al. 2024, arXiv:2407.21783,
     * section 3.3.2). Any N; T is a multiple of 2 N. Each layer's gathered keys and values live
     * until its backward; recompute shortens that. */
    TN_CP_KEYS
} tn_cp_kind;

/* Splits the sequences of m, a language model (tn_lm_shape_of), over the ranks of cp, until m is
 * finished. m is called with whole sequences, and gives the logits of this rank's positions;
 * tn_lm_loss gives every rank the mean over all positions. Positions that are given, and a mask,
 * are those of whole sequences too. While caches are open (tn_cache_begin, tn_generate) nothing is
 * split, and every rank computes all positions.
 *
 * Each rank's gradients are N times those of its positions: their mean over cp is that of the loss.
 * So tn_ddp or tn_fsdp is attached over the product of the data's ranks and cp's (tn_mesh_group:
 * "dp cp"); over fewer it is TN_EVALUE. With its option `sum`, divide the loss by N. Each rank's
 * positions get dropout masks of their own.
 *
 * Every rank calls; after tn_tensor_parallel, before tn_ddp, tn_fsdp and the optimiser. Compares
 * modules, and gives every rank rank 0's parameters and buffers. cp must live as long as m.
 *
 * TN_EVALUE: not a language model, or no such kind; TN_ESHAPE: heads that N does not divide, or, in
 * a call, a T that is not a multiple; TN_EMISMATCH: modules or kinds differ, or, in the first call
 * of training and of each evaluation, tokens; TN_ESTATE: m is already split this way, or parallel,
 * or an optimiser holds a parameter. After an error m is as it was. */
TN_API tn_status tn_context_parallel(void *m, tn_group *cp, tn_cp_kind kind);

/* What this rank has of x, which is (…, T, …) along dim: targets, a mask of positions, to go with
 * the logits. Nothing is sent, and the gradient is this rank's alone. TN_ESHAPE: T is not a
 * multiple of N, or 2 N; TN_EVALUE: no such kind. */
TN_API tn_tensor *tn_context_slice(tn_group *cp, tn_cp_kind kind, tn_tensor *x, int dim);

/* ---- One mesh for all of it -------------------------------------------------------------------
 */

/* The number of ranks along each dimension; their product is the number of all ranks. Rank order:
 * pp outermost, then dp, shard, cp, and tp innermost, whose ranks exchange the most. */
typedef struct tn_spread_options {
    int pp;    /* 1; ranks that share the layers (tn_pipeline_new) */
    int dp;    /* whole copies, different batches. 0: what is left; 1 where shard is 0 */
    int shard; /* 1; ranks that store a copy together (tn_fsdp). 0: what is left */
    int cp;    /* 1; ranks that share a batch's positions */
    int tp;    /* 1; ranks that share each matrix */
    tn_pipeline_options pipeline;
    tn_tp_options tensor;
    tn_cp_kind context;
    tn_fsdp_options sharding; /* where shard is not 1, or with its `offload` … */
    tn_ddp_options data;      /* … and otherwise */
    /* false; true: the model will not be trained. Its parameters are frozen, copies are not kept
     * the same, and parameters without elements (TN_DEFER_INIT) stay so where they are not sharded:
     * tn_lm_load_weights then reads what this rank has, and no more memory is needed. */
    bool inference;
    bool from_defaults;
} tn_spread_options;
TN_API tn_spread_options tn_spread_defaults(void);

/* Changes o as a list of words separated by commas says: "tp=2,shard=all", and "sequence"
 * (tn_tp_options), "keys" (TN_CP_KEYS), "stage=2" (tn_fsdp_options), "gpipe", "zb_h1" or "chunks=2"
 * (kinds of tn_pipeline_options: TN_PIPE_GPIPE, TN_PIPE_ZERO_BUBBLE, TN_PIPE_INTERLEAVED).
 * TN_EVALUE names a word that is none of them. */
TN_API tn_status tn_spread_read(tn_spread_options *o, const char *mesh);

/* Splits m over all ranks of world, in the only right order: pipeline, tensor, context, then FSDP
 * or DDP. Every rank calls, after precision, device and recompute are set and before the optimiser
 * is made. Deferred weights (TN_DEFER_INIT) are made. NULL after an error: TN_EVALUE for sizes
 * whose product is not the number of ranks (it says which would be); TN_EMISMATCH, on all ranks,
 * for models or meshes that differ; or the error of a piece. Free it after m is finished, and
 * before world is freed.
 */
typedef struct tn_spread tn_spread;
TN_API tn_spread *tn_spread_new(void *m, tn_group *world, tn_spread_options options);
TN_API tn_group *tn_spread_data(tn_spread *s); /* ranks with different batches: sampler, means */
/* The ranks along some dimensions, "tp" or "dp shard" (tn_mesh_group). */
TN_API tn_group *tn_spread_group(tn_spread *s, const char *dims);
/* Forward and backward of n micro-batches of this rank's loader; adds the gradients of their mean
 * loss (tn_lm_loss), scaled by the scaler (NULL: not), and synchronises them after the last; at
 * stages 2 and 3 after each, since there is no memory for whole gradients, but not with pp. Every
 * rank calls. Returns the mean loss; NaN after an error, or at the end of the data. TN_EVALUE: n is
 * below 1 or above INT_MAX, or the data end in the middle of the step. */
TN_API double tn_spread_step(tn_spread *s, tn_loader *data, int64_t n, tn_scaler *scaler);
/* The mean loss of the next n micro-batches, in evaluation mode and without gradients. Each module
 * has its own mode again then. */
TN_API double tn_spread_loss(tn_spread *s, tn_loader *data, int64_t n);
/* Prints which rank has which layers, batches, positions, rows and parts. */
TN_API void tn_spread_print(tn_spread *s, FILE *f);
TN_API void tn_spread_free(tn_spread *s);

#ifdef __cplusplus
}
#endif
#endif
