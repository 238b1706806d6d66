/* Choosing among ways to do the same work by timing them: gemm.c, dnn.c. */
#ifndef TERN_BACKENDS_CUDA_TUNE_H
#define TERN_BACKENDS_CUDA_TUNE_H

#include "backends/cuda/cuda.h"

/* Whether candidates are timed: as TERN_AUTOTUNE says (1 or 0; read once), else if the context need
 * not be deterministic. Another process may choose others and get different bits. */
bool tn__cuda_tunes(const tn_context *ctx);

/* Queues candidate i's work once; false: it does not run. */
typedef bool (*tn__cuda_candidate)(tn_context *ctx, int i, void *user);

/* The fastest of `count` candidates, each run a few times; 0 when none can be timed. */
int tn__cuda_fastest(tn_context *ctx, int count, tn__cuda_candidate run, void *user);

#endif
