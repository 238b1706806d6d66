/* Training configured by a file in DeepSpeed's format (deepspeed.ai/docs/config-json): batch sizes,
 * precision, optimiser, learning rate, clipping, ZeRO stage and offload.
 *
 *     tn_deepspeed *d = tn_deepspeed_new(&net, world, "ds_config.json");
 *     lo.batch = tn_deepspeed_batch(d).micro;
 *     while (tn_loader_next(loader, &b)) {
 *         TN_SCOPE;
 *         tn_deepspeed_backward(d, loss_of(&net, &b));
 *         tn_deepspeed_step(d);
 *     }
 *     tn_deepspeed_free(d);
 *
 * Call backward and step once per micro-batch, as with DeepSpeed's engine; the optimiser steps
 * after the last of an accumulation. docs/deepspeed.md has every key and what it does here.
 */
#ifndef TERN_DEEPSPEED_H
#define TERN_DEEPSPEED_H

#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_deepspeed tn_deepspeed;

/* Sets up m as the file says: precision, data parallelism over `world`, and then the optimiser.
 * Rank 0 reads the file, every rank calls. Defaults are DeepSpeed's: gradients are clipped at 1,
 * and "Adam" is AdamW without decay. m is used until tn_deepspeed_free, must not have data
 * parallelism or an optimiser yet, and may have been built under TN_DEFER_INIT. Keys without a
 * meaning here are named in one warning.
 *
 * NULL after an error, on every rank: TN_EIO, TN_EFORMAT (not JSON); TN_EVALUE for an invalid value
 * (including "auto"), batch sizes whose product is not the batch; TN_EUNSUPPORTED for a key without
 * a meaning here that is true or an object, unless it is known not to change the training. The
 * message has path and value. */
TN_API tn_deepspeed *tn_deepspeed_new(void *m, tn_group *world, const char *path);
TN_API void tn_deepspeed_free(tn_deepspeed *d); /* every function here takes NULL */

/* An optimiser of the program's own, as for deepspeed.initialize(model, optimizer, config): made of
 * m after tn_deepspeed_new, on every rank, and set before the first backward.
 *
 *     tn_deepspeed_set_optim(d, tn_lion(&net, TN_WITH(tn_lion, .lr = 1e-4)));
 *
 * d frees it, unless this is an error. It replaces the one of the file, which needs none then; a
 * scheduler of the file begins with its learning rate where the file gives none. */
TN_API tn_status tn_deepspeed_set_optim(tn_deepspeed *d, tn_optim *optim);

/* The backward of one micro-batch's mean loss; gradients add up to the mean over all micro-batches
 * of a step. They are sent in the last one's backward, with stages 2 and 3 in each. */
TN_API tn_status tn_deepspeed_backward(tn_deepspeed *d, tn_tensor *loss);
/* Call once after each backward (TN_ESTATE: there was none). After the last micro-batch: clips,
 * sets the learning rate, steps the optimiser unless fp16 overflowed, and clears the gradients. */
TN_API tn_status tn_deepspeed_step(tn_deepspeed *d);

/* Batch sizes, from the file and the number of ranks. */
typedef struct tn_deepspeed_sizes {
    int64_t all;          /* train_batch_size: examples per step, on all ranks */
    int64_t micro;        /* train_micro_batch_size_per_gpu: per backward, on this rank */
    int64_t accumulation; /* gradient_accumulation_steps: backwards per step */
} tn_deepspeed_sizes;
TN_API tn_deepspeed_sizes tn_deepspeed_batch(const tn_deepspeed *d);

/* Whether the next tn_deepspeed_step steps the optimiser. */
TN_API bool tn_deepspeed_due(const tn_deepspeed *d);
/* The learning rate of the next step; NaN while there is no optimiser. */
TN_API double tn_deepspeed_lr(const tn_deepspeed *d);
/* The norm of the last step's gradients before clipping; NaN before the first. */
TN_API double tn_deepspeed_norm(const tn_deepspeed *d);

/* d's optimiser: to inspect, and for parameter groups. A scheduler sets the learning rate before
 * each step; without one it is the optimiser's. */
TN_API tn_optim *tn_deepspeed_optim(tn_deepspeed *d);
/* A checkpoint with model, optimiser, scaler and number of steps, to be completed, and saved or
 * loaded between steps. The schedule follows the optimiser's steps. */
TN_API tn_checkpoint tn_deepspeed_checkpoint(const tn_deepspeed *d);

#ifdef __cplusplus
}
#endif
#endif
