/* Attention on a device: the kernels (attention.c) choose between cuDNN (sdpa.c)
 * and our own kernels (attention.cu). */
#ifndef TERN_BACKENDS_CUDA_ATTENTION_H
#define TERN_BACKENDS_CUDA_ATTENTION_H

#include "backends/attention.h"
#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* sdpa.c, forward and, if there is a dq, backward. TN_EUNSUPPORTED: cuDNN is missing or does not
 * take this call, and nothing was queued. */
tn_status tn__cuda_sdpa(tn_context *ctx, const tn__attention *a);

/* attention.cu. Width up to 256. */
tn_status tn__cuda_own_attention(tn_context *ctx, const tn__attention *a);
tn_status tn__cuda_own_attention_backward(tn_context *ctx, const tn__attention *a);

#ifdef __cplusplus
}
#endif
#endif
