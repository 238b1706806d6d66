/* Convolutions on a device: the entries (conv_dnn.c) choose between cuDNN (conv_graph.c) and our
 * own kernels (conv.cu). */
#ifndef TERN_BACKENDS_CUDA_CONV_H
#define TERN_BACKENDS_CUDA_CONV_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which of the three is the result; the other two are read. */
typedef enum tn__conv_result { TN__CONV_Y, TN__CONV_X, TN__CONV_W } tn__conv_result;

/* One call. Gradients use conv's names for their operands, too: y is dy there, and so on. b is the
 * bias of the result, never of w. */
typedef struct tn__cuda_conv_call {
    tn__conv_result result;
    const tn_desc *y, *x, *w, *b;
    const tn_conv_args *args;
} tn__cuda_conv_call;

/* conv.cu. The result has the others' dtype; w may also be f32 if they are bf16 or f16. */
tn_status tn__cuda_own_conv(tn_context *ctx, const tn__cuda_conv_call *c);
/* db (O): the sums of y's channels. */
tn_status tn__cuda_conv_bias(tn_context *ctx, const tn_desc *db, const tn_desc *y);

#ifdef __cplusplus
}
#endif
#endif
