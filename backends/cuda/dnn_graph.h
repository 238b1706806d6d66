/* Graphs of cuDNN's backend API: tensors, operations between them, and the plan that an engine
 * makes of the whole. sdpa_graph.c and conv_graph.c build their graphs with these; dnn.c keeps a
 * device's plans; tests build plans for devices that are only described, not present.
 *
 *     tn__dnn_graph g = {.dnn = dnn, .name = "a product", .why = why};
 *     tn__dnn_descriptor x = tn__dnn_tensor(&g, X, type, 4, size, stride, TN__DNN_REAL), …
 *     tn__dnn_add(&g, operation, "a product");
 *     int count = tn__dnn_plans(&g, target, 0, most, plans);
 *     tn__dnn_clear(&g);
 *
 * A failure inside a graph sticks: everything after it does nothing, and the first reason is kept.
 */
#ifndef TERN_BACKENDS_CUDA_DNN_GRAPH_H
#define TERN_BACKENDS_CUDA_DNN_GRAPH_H

#include "backends/cuda/libraries.h"

#if TN_HAVE_CUDNN

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef cudnnBackendDescriptor_t tn__dnn_descriptor;

enum { TN__DNN_WHY = 256, TN__DNN_DESCRIPTORS = 256, TN__DNN_OPERATIONS = 32 };

typedef struct tn__dnn_graph {
    const tn__cudnn_table *dnn;
    const char *name; /* for messages */
    char *why;        /* TN__DNN_WHY bytes: the first failure */
    tn__dnn_descriptor made[TN__DNN_DESCRIPTORS], operation[TN__DNN_OPERATIONS];
    int count, operations;
    bool failed;
} tn__dnn_graph;

/* Records a failure with the library's message. */
void tn__dnn_check(tn__dnn_graph *g, cudnnStatus_t status, const char *what);

/* Descriptors belong to the graph. tn__dnn_clear destroys them; plans stay. */
tn__dnn_descriptor tn__dnn_make(tn__dnn_graph *g, cudnnBackendDescriptorType_t type);
void tn__dnn_set(tn__dnn_graph *g, tn__dnn_descriptor d, cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, int64_t count, const void *values);
void tn__dnn_link(tn__dnn_graph *g, tn__dnn_descriptor d, cudnnBackendAttributeName_t name,
                  tn__dnn_descriptor value);
void tn__dnn_finish(tn__dnn_graph *g, tn__dnn_descriptor d, const char *what);
void tn__dnn_clear(tn__dnn_graph *g);

/* A virtual tensor has dimensions but no memory; a tensor of parts is real, with its elements in
 * the order in which the tensor cores hold them. */
typedef enum tn__dnn_memory {
    TN__DNN_REAL,
    TN__DNN_VIRTUAL,
    TN__DNN_BY_VALUE,
    TN__DNN_PARTS
} tn__dnn_memory;

tn__dnn_descriptor tn__dnn_tensor(tn__dnn_graph *g, int64_t name, cudnnDataType_t type, int ndim,
                                  const int64_t *size, const int64_t *stride, tn__dnn_memory where);

/* Finishes an operation and appends it. */
void tn__dnn_add(tn__dnn_graph *g, tn__dnn_descriptor operation, const char *what);

/* y = mode(x, b, t); b and t may be NULL. Only GEN_INDEX reads `axis`. */
void tn__dnn_pointwise(tn__dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute,
                       int64_t axis, tn__dnn_descriptor x, tn__dnn_descriptor b,
                       tn__dnn_descriptor t, tn__dnn_descriptor y);

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Whether a device can be described, as tests do. Older versions make plans only for a device that
 * is present. */
#define TN__DNN_DESCRIBED (CUDNN_VERSION >= 90800)

/* Where the graph will run: one of the first two is NULL. */
typedef struct tn__dnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t described; /* a device that need not be present */
    int major;                          /* the device's compute capability */
} tn__dnn_target;

typedef struct tn__dnn_plan {
    tn__dnn_descriptor plan;
    int64_t workspace; /* bytes that cuDNN asks for */
} tn__dnn_plan;

/* A bit for each CUDNN_NUMERICAL_NOTE_…: what an engine reports about itself. */
#define TN__DNN_NOTE(note) (1u << CUDNN_NUMERICAL_NOTE_##note)

/* Makes up to `most` plans, the heuristic's choice first, from engines with none of the notes in
 * `refused`. Returns how many; 0: the reason is in the graph's `why`. */
int tn__dnn_plans(tn__dnn_graph *g, tn__dnn_target target, unsigned refused, int most,
                  tn__dnn_plan *plans);

/* Queues the plan in the handle's stream, with these addresses for the tensors of these names.
 * Numbers passed by value are read before it returns. */
cudnnStatus_t tn__dnn_run(const tn__cudnn_table *dnn, cudnnHandle_t handle,
                          const tn__dnn_plan *plan, int64_t count, const int64_t *names,
                          void *const *addresses, void *workspace);

#ifdef __cplusplus
}
#endif

#endif
#endif
