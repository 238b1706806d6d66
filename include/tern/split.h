/* How one model's matrices and positions are cut over ranks.
 *
 *     tn_tensor_parallel(&gpt, tp, tn_tp_defaults());   // each matrix over the ranks of tp
 *     tn_ddp(&gpt, dp, tn_ddp_defaults());              // and whole batches over those of dp
 *     ... the optimiser, and the loop of one process, unchanged ...
 *
 * What is cut computes what one rank would, to rounding. Sharding and data parallelism (parallel.h)
 * are attached after it and keep to what a rank has.
 *
 * Read next: docs/splitting.md, distributed/parallel/tensor/styles.c.
 */
#ifndef TERN_SPLIT_H
#define TERN_SPLIT_H

#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053) ------------------------------ */

typedef struct tn_tp_options {
    const tn_tp_rule *plan; /* NULL: the language model's own, tn_gpt_tp or tn_llama_tp */
    /* false; true: while it trains each rank has T / N of the positions between cut regions
     * (Korthikanti et al. 2022, arXiv:2205.05198): the same sums in two halves, and 1 / N of the
     * activations. T is a multiple of N. */
    bool sequence;
    bool from_defaults;
} tn_tp_options;
TN_API tn_tp_options tn_tp_defaults(void);

/* Cuts the matrices of m over the ranks of tp, until m is finished: a field holds this rank's block
 * from now on (tn_entry.layout), heads and hidden units are divided, and every rank of tp gets the
 * same batch and computes the same loss. Compares modules and options and gives every rank rank 0's
 * parameters and buffers; of a module that was built under TN_DEFER_INIT each rank makes its blocks
 * alone. All ranks of tp draw the same dropout masks on what they hold alike.
 *
 * Every rank calls; after tn_module_set_precision and tn_module_to, before tn_ddp, tn_fsdp and the
 * optimiser. tn_lm_loss never has the full logits; who calls the model gets all columns.
 * tn_generate is called on every rank with one seed, and gives all the same text. tp must live as
 * long as m.
 *
 * TN_EVALUE: no plan, a path that names nothing, a style that does not fit a module; TN_ESHAPE: a
 * size that the ranks do not divide; TN_EMISMATCH: modules differ; TN_ESTATE: m is cut or parallel
 * already, or an optimiser holds a parameter. After an error in the plan m is as it was. */
TN_API tn_status tn_tensor_parallel(void *m, tn_group *tp, tn_tp_options options);

/* tn_cross_entropy_with of logits of which each rank of tp has some columns: (…, this rank's), of
 * `classes` in all, cut as tn_layout cuts one piece. Labels (…) are of all classes, and the same on
 * all ranks, as is the loss. label_smoothing and weight: TN_EUNSUPPORTED. Its gradient cannot be
 * differentiated again. */
TN_API tn_tensor *tn_dist_cross_entropy(tn_group *tp, tn_tensor *logits, tn_tensor *labels,
                                        int64_t classes, tn_cross_entropy_options options);

#ifdef __cplusplus
}
#endif
#endif
