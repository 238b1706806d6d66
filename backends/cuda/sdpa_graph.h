/* Attention as a graph of cuDNN's backend API, and the plan that runs it. dnn.c keeps a device's
 * plans; a test builds plans for devices that are not present.
 */
#ifndef TERN_BACKENDS_CUDA_SDPA_GRAPH_H
#define TERN_BACKENDS_CUDA_SDPA_GRAPH_H

#include "backends/attention.h"
#include "backends/cuda/dnn_graph.h"

#if TN_HAVE_CUDNN

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Strides in elements, in the order (B, H, T, D). All fields are 8 bytes wide:
 * shapes are compared by memcmp. */
typedef struct tn__sdpa_shape {
    int64_t batch, heads, groups, queries, keys, width; /* groups: heads of k and v */
    int64_t q[4], k[4], v[4], y[4];
    int64_t dy[4], dq[4], dk[4], dv[4]; /* backward */
    int64_t f16;                        /* otherwise bf16 */
    int64_t causal;                     /* query i sees keys 0 … i */
    int64_t backward;
    int64_t deterministic; /* backward: no atomic additions */
} tn__sdpa_shape;

/* Makes up to `most` plans of a tn__sdpa_shape, the heuristic's choice first. Returns how many; 0:
 * see `why`. */
int tn__sdpa_plans(const tn__cudnn_table *dnn, tn__dnn_target target, const void *shape, int most,
                   tn__dnn_plan *plans, char why[TN__DNN_WHY]);

/* Bytes of scratch memory for a run, and how many of the first ones must be zeroed. */
size_t tn__sdpa_workspace(const tn__sdpa_shape *shape, const tn__dnn_plan *plan);
size_t tn__sdpa_zeroed(const tn__sdpa_shape *shape);

/* Queues it on the handle's stream. lse: (B, H, Tq) dense f32. */
cudnnStatus_t tn__sdpa_run(const tn__cudnn_table *dnn, cudnnHandle_t handle,
                           const tn__sdpa_shape *shape, const tn__dnn_plan *plan,
                           const tn__attention *a, void *workspace);

#ifdef __cplusplus
}
#endif

#endif
#endif
