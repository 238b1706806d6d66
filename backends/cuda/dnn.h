/* cuDNN on a device: its handle, and a cache of plans for graphs.
 *
 * A plan takes tenths of a second to build, so it is cached, with the bytes of its shape as the
 * key; so is the fact that there is none. The handle belongs to one call at a time:
 *
 *     tn__dnn *dnn = tn__dnn_open(ctx);              takes its lock
 *     if (dnn && dnn->handle) {
 *         tn__dnn_kept *k = tn__dnn_find(dnn, &shape, sizeof(shape));
 *         …                                          tn__dnn_keep if there is none yet
 *     }
 *     tn__dnn_close(dnn);
 */
#ifndef TERN_BACKENDS_CUDA_DNN_H
#define TERN_BACKENDS_CUDA_DNN_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/dnn_graph.h"

/* Why cuDNN does not start on the current device; NULL: it does, or it is not there. */
const char *tn__dnn_trouble(void);

#if TN_HAVE_CUDNN

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn__dnn tn__dnn;
typedef struct tn__dnn_kept tn__dnn_kept;

struct tn__dnn {
    cudnnHandle_t handle; /* NULL: there is no cuDNN for this device */
    tn__dnn_kept *plans;
    int count;
};

struct tn__dnn_kept {
    tn__dnn_kept *next;
    void *plan; /* NULL: cuDNN does not take this shape */
    void (*plan_free)(const tn__cudnn_table *dnn, void *plan);
    size_t bytes;
    unsigned char key[];
};

/* NULL: no host memory. */
tn__dnn *tn__dnn_open(tn_context *ctx);
void tn__dnn_close(tn__dnn *dnn);

/* NULL: none yet. */
tn__dnn_kept *tn__dnn_find(tn__dnn *dnn, const void *key, size_t bytes);
/* A place for the plan of this key; NULL: no host memory. When there are too many, all earlier ones
 * are dropped. */
tn__dnn_kept *tn__dnn_keep(tn_context *ctx, tn__dnn *dnn, const void *key, size_t bytes,
                           void (*plan_free)(const tn__cudnn_table *dnn, void *plan));

/* A run's status for the entry to return; notes a failure, or the launch, under the name `what`. */
tn_status tn__dnn_status(tn_context *ctx, cudnnStatus_t status, const char *what);

#ifdef __cplusplus
}
#endif

#endif
#endif
