/* A convolution, or one of its gradients, as a cuDNN graph, and the plan that runs it. dnn.c
 * keeps a device's plans; a test builds plans for devices that are only described, not present. */
#ifndef TERN_BACKENDS_CUDA_CONV_GRAPH_H
#define TERN_BACKENDS_CUDA_CONV_GRAPH_H

#include "backends/cuda/conv.h"
#include "backends/cuda/dnn_graph.h"

#if TN_HAVE_CUDNN

#ifdef __cplusplus
extern "C" {
#endif

enum { TN__CONV_NDIM = 5 };

/* One tensor: sizes and strides in elements. */
typedef struct tn__conv_extent {
    int64_t size[TN__CONV_NDIM], stride[TN__CONV_NDIM];
} tn__conv_extent;

/* (N, C, …) with ndim - 2 dimensions after the channels: 2 or 3. All fields have 8 bytes, so
 * shapes are compared as bytes. */
typedef struct tn__conv_shape {
    int64_t result; /* a tn__conv_result */
    int64_t ndim;
    int64_t type;      /* cudnnDataType_t */
    int64_t with_bias; /* added before the result is rounded */
    int64_t deterministic;
    int64_t tf32; /* f32 may be rounded to TF32 on the tensor cores */
    tn__conv_extent y, x, w;
    int64_t stride[3], before[3], after[3], dilation[3]; /* padding before and after x */
} tn__conv_shape;

typedef struct tn__conv_data {
    void *y, *x, *w, *b;
} tn__conv_data;

/* Makes up to `most` plans of a tn__conv_shape, the heuristic's choice first. Returns how many; 0:
 * see `why`. */
int tn__conv_plans(const tn__cudnn_table *dnn, tn__dnn_target target, const void *shape, int most,
                   tn__dnn_plan *plans, char why[TN__DNN_WHY]);

/* Queues it on the handle's stream. */
cudnnStatus_t tn__conv_run(const tn__cudnn_table *dnn, cudnnHandle_t handle,
                           const tn__dnn_plan *plan, const tn__conv_data *data, void *workspace);

#ifdef __cplusplus
}
#endif

#endif
#endif
