/* Our own kernels of attention (attention.cu), which sdpa.c calls where cuDNN does not serve. */
#ifndef TERN_BACKENDS_CUDA_ATTENTION_H
#define TERN_BACKENDS_CUDA_ATTENTION_H

#include "backends/attention.h"
#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Width up to 256. */
tn_status tn__cuda_own_attention(tn_context *ctx, const tn__attention *a);
tn_status tn__cuda_own_attention_backward(tn_context *ctx, const tn__attention *a);

#ifdef __cplusplus
}
#endif
#endif
