/* A training run by a file in DeepSpeed's format (deepspeed.ai/docs/config-json): batch sizes,
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
 * Each micro-batch has its backward and its step, as with DeepSpeed's engine; the optimiser steps
 * after the last of an accumulation. docs/deepspeed.md has every key and what it does here.
 */
#ifndef TERN_DEEPSPEED_H
#define TERN_DEEPSPEED_H

#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_deepspeed tn_deepspeed;

/* Does to m what the file says: precision, data parallelism over `world`, and then the optimiser.
 * Rank 0 reads the file, every rank calls. What the file does not say is as DeepSpeed has it:
 * gradients are clipped at 1, and an "Adam" is AdamW without decay. m is used until
 * tn_deepspeed_free, has no data parallelism or optimiser yet, and may have been built under
 * TN_DEFER_INIT. Keys without meaning here are
 * named once in the log (TN_LOG_INFO).
 *
 * NULL after an error, on every rank: TN_EIO (TN_EPEER on the others), TN_EFORMAT (no JSON);
 * TN_EVALUE for a key that DeepSpeed does not have, a value that does not fit (also "auto"), batch
 * sizes whose product is not the batch; TN_EUNSUPPORTED for what Tern has nothing for. The message
 * has path and value. */
TN_API tn_deepspeed *tn_deepspeed_new(void *m, tn_group *world, const char *path);
TN_API void tn_deepspeed_free(tn_deepspeed *d); /* every function here takes NULL */

/* The backward of one micro-batch's mean loss; gradients are added up to the mean over all
 * micro-batches of a step. Those of the last one travel, and with stages 2 and 3 each one's. */
TN_API tn_status tn_deepspeed_backward(tn_deepspeed *d, tn_tensor *loss);
/* Once after each backward (TN_ESTATE: there was none). After the last micro-batch: clips, sets the
 * learning rate, steps the optimiser unless fp16 has overflowed, and clears the gradients. */
TN_API tn_status tn_deepspeed_step(tn_deepspeed *d);

/* What the file and the number of ranks say of a batch. */
typedef struct tn_deepspeed_sizes {
    int64_t all;          /* train_batch_size: examples of a step, on all ranks */
    int64_t micro;        /* train_micro_batch_size_per_gpu: of one backward, on this rank */
    int64_t accumulation; /* gradient_accumulation_steps: backwards of a step */
} tn_deepspeed_sizes;
TN_API tn_deepspeed_sizes tn_deepspeed_batch(const tn_deepspeed *d);

/* Whether the next tn_deepspeed_step steps the optimiser. */
TN_API bool tn_deepspeed_due(const tn_deepspeed *d);
/* The learning rate of the next step. */
TN_API double tn_deepspeed_lr(const tn_deepspeed *d);
/* The norm of the last step's gradients before clipping; NaN before the first. */
TN_API double tn_deepspeed_norm(const tn_deepspeed *d);

/* d's own: to look at, and for groups of parameters. A scheduler sets the learning rate before each
 * step; without one it is the optimiser's. */
TN_API tn_optim *tn_deepspeed_optim(tn_deepspeed *d);
/* With model, optimiser, scaler and the number of steps, to be completed, saved and loaded between
 * steps. The schedule follows the optimiser's steps. How many overflows the loss scale has put up
 * with (fp16.hysteresis) is not saved. */
TN_API tn_checkpoint tn_deepspeed_checkpoint(const tn_deepspeed *d);

#ifdef __cplusplus
}
#endif
#endif
