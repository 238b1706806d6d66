/* cuDNN on a device: its handle, and the plans of graphs.
 *
 * A plan takes tenths of a second to build, so it is kept, with the bytes of its shape as the key;
 * so is the fact that there is none. It is the heuristic's first, so that each run of a program
 * gives the same bits; in a context that need not be deterministic, or with TERN_AUTOTUNE=1, the
 * fastest of a few. The handle belongs to one call at a time:
 *
 *     tn__dnn *dnn = tn__dnn_open(ctx);              takes its lock
 *     if (dnn && dnn->handle) {
 *         status = tn__dnn_find(ctx, dnn, &work, &plan);
 *         …                                          work.run(ctx, dnn, &work, plan)
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

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TN__DNN_CHOICES = 4 };

/* One per device. */
typedef struct tn__dnn {
    cudnnHandle_t handle; /* NULL: there is no cuDNN for this device */
    pthread_mutex_t lock;
    struct tn__dnn_kept *plans;
    int count; /* of them */
} tn__dnn;

/* A graph's shape, without padding between its members; its operands; and what is done with both.
 */
typedef struct tn__dnn_work tn__dnn_work;
struct tn__dnn_work {
    const void *shape, *data;
    size_t bytes; /* of the shape */
    /* Makes up to `most` plans, the heuristic's choice first. Returns how many; 0: see `why`. */
    int (*make)(const tn__cudnn_table *dnn, tn__dnn_target target, const void *shape, int most,
                tn__dnn_plan *plans, char why[TN__DNN_WHY]);
    /* May also be called to time a plan, before the call itself overwrites the results. */
    tn_status (*run)(tn_context *ctx, tn__dnn *dnn, const tn__dnn_work *work,
                     const tn__dnn_plan *plan);
    void (*refused)(const void *shape, const char *why); /* there is no plan: says so */
};

/* NULL: no host memory. */
tn__dnn *tn__dnn_open(tn_context *ctx);
void tn__dnn_close(tn__dnn *dnn);

/* The plan for this shape, which the device keeps. TN_EUNSUPPORTED: cuDNN has none. */
tn_status tn__dnn_find(tn_context *ctx, tn__dnn *dnn, const tn__dnn_work *work,
                       const tn__dnn_plan **plan);
/* Whether it is known that cuDNN has none. */
bool tn__dnn_refused(const tn__dnn *dnn, const tn__dnn_work *work);

/* A run's status for the entry to return; notes a failure, or the launch, under the name `what`. */
tn_status tn__dnn_status(tn_context *ctx, cudnnStatus_t status, const char *what);

#ifdef __cplusplus
}
#endif

#endif
#endif
