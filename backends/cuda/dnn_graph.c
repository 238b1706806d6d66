/* Descriptors, plans and runs of cuDNN graphs: see dnn_graph.h. */
#include "backends/cuda/dnn_graph.h"

#if TN_HAVE_CUDNN

#include <stdio.h>

typedef tn__dnn_descriptor descriptor;

enum { MOST_CONFIGS = 64 }; /* those that do not round f32 are far down the list */

/* ---- Descriptors ----------------------------------------------------------------------------- */

void tn__dnn_check(tn__dnn_graph *g, cudnnStatus_t status, const char *what) {
    if (status != CUDNN_STATUS_SUCCESS && !g->failed) {
        char words[160] = "";
        g->dnn->GetLastErrorString(words, sizeof(words));
        snprintf(g->why, TN__DNN_WHY, "cuDNN, %s: %s%s%s", what, g->dnn->GetErrorString(status),
                 words[0] ? ": " : "", words);
        g->failed = true;
    }
}

descriptor tn__dnn_make(tn__dnn_graph *g, cudnnBackendDescriptorType_t type) {
    descriptor d = NULL;
    if (!g->failed && g->count == TN__DNN_DESCRIPTORS) {
        tn__dnn_check(g, CUDNN_STATUS_ALLOC_FAILED, "a graph");
    }
    if (!g->failed) { tn__dnn_check(g, g->dnn->BackendCreateDescriptor(type, &d), "a descriptor"); }
    if (!g->failed) { g->made[g->count++] = d; }
    return d;
}

void tn__dnn_set(tn__dnn_graph *g, descriptor d, cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (!g->failed) {
        tn__dnn_check(g, g->dnn->BackendSetAttribute(d, name, type, count, values), "an attribute");
    }
}

void tn__dnn_link(tn__dnn_graph *g, descriptor d, cudnnBackendAttributeName_t name,
                  descriptor value) {
    tn__dnn_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void tn__dnn_finish(tn__dnn_graph *g, descriptor d, const char *what) {
    if (!g->failed) { tn__dnn_check(g, g->dnn->BackendFinalize(d), what); }
}

void tn__dnn_clear(tn__dnn_graph *g) {
    while (g->count > 0) {
        g->dnn->BackendDestroyDescriptor(g->made[--g->count]);
    }
}

descriptor tn__dnn_tensor(tn__dnn_graph *g, int64_t name, cudnnDataType_t type, int ndim,
                          const int64_t *size, const int64_t *stride, tn__dnn_memory where) {
    descriptor d = tn__dnn_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = where == TN__DNN_BY_VALUE ? 4 : 16;
    bool is_virtual = where == TN__DNN_VIRTUAL, by_value = where == TN__DNN_BY_VALUE;
    tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, ndim, size);
    tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, ndim, stride);
    tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    if (where == TN__DNN_PARTS) {
        cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_F16x16;
        tn__dnn_set(g, d, CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1,
                    &order);
    }
    tn__dnn_finish(g, d, "a tensor");
    return d;
}

/* ---- Operations ------------------------------------------------------------------------------ */

void tn__dnn_add(tn__dnn_graph *g, descriptor operation, const char *what) {
    if (!g->failed && g->operations == TN__DNN_OPERATIONS) {
        tn__dnn_check(g, CUDNN_STATUS_ALLOC_FAILED, "a graph");
    }
    tn__dnn_finish(g, operation, what);
    if (!g->failed) { g->operation[g->operations++] = operation; }
}

void tn__dnn_pointwise(tn__dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute,
                       int64_t axis, descriptor x, descriptor b, descriptor t, descriptor y) {
    descriptor kind = tn__dnn_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    tn__dnn_set(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    tn__dnn_set(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        tn__dnn_set(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    }
    tn__dnn_finish(g, kind, "a pointwise operation");
    descriptor operation = tn__dnn_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    tn__dnn_link(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    tn__dnn_link(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) { tn__dnn_link(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b); }
    if (t) { tn__dnn_link(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t); }
    tn__dnn_link(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    tn__dnn_add(g, operation, "a pointwise operation");
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* The notes of a configuration's engine, a bit for each; all bits if they cannot be read. */
static unsigned notes_of(const tn__dnn_graph *g, descriptor config) {
    descriptor engine = NULL;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    unsigned found = 0;
    if (g->dnn->BackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS) {
        return ~0u;
    }
    if (g->dnn->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                    &engine) != CUDNN_STATUS_SUCCESS ||
        g->dnn->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                    CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                    &count, notes) != CUDNN_STATUS_SUCCESS) {
        found = ~0u;
        count = 0;
    }
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
        found |= 1u << notes[i];
    }
    g->dnn->BackendDestroyDescriptor(engine);
    return found;
}

/* Gets the heuristic's engine configurations for the graph, best first; returns how many. */
static int64_t find_configurations(tn__dnn_graph *g, tn__dnn_target target, descriptor *config) {
    descriptor operations = tn__dnn_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    tn__dnn_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                g->operations, g->operation);
    if (target.handle) {
        tn__dnn_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                    &target.handle);
    }
    tn__dnn_finish(g, operations, g->name);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor heuristic = tn__dnn_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    tn__dnn_link(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    tn__dnn_set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if TN__DNN_DESCRIBED
    if (target.described) {
        tn__dnn_link(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.described);
    }
#endif
    tn__dnn_finish(g, heuristic, "the choice of an engine");
    for (int i = 0; i < MOST_CONFIGS; i++) {
        config[i] = tn__dnn_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    int64_t count = 0;
    if (!g->failed) {
        tn__dnn_check(g,
                      g->dnn->BackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_CONFIGS,
                                                  &count, config),
                      "the choice of an engine");
    }
    return g->failed ? 0 : count;
}

/* The plan of one configuration; false: it does not build. */
static bool plan_of(const tn__dnn_graph *g, tn__dnn_target target, descriptor config,
                    tn__dnn_plan *p) {
    const tn__cudnn_table *dnn = g->dnn;
    int64_t count;
    if (dnn->BackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan) !=
        CUDNN_STATUS_SUCCESS) {
        return false;
    }
    cudnnStatus_t status =
        dnn->BackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (status == CUDNN_STATUS_SUCCESS && target.handle) {
        status = dnn->BackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                          CUDNN_TYPE_HANDLE, 1, &target.handle);
    }
#if TN__DNN_DESCRIBED
    if (status == CUDNN_STATUS_SUCCESS && target.described) {
        status = dnn->BackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target.described);
    }
#endif
    status = status == CUDNN_STATUS_SUCCESS ? dnn->BackendFinalize(p->plan) : status;
    if (status == CUDNN_STATUS_SUCCESS) {
        status = dnn->BackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &count, &p->workspace);
    }
    if (status != CUDNN_STATUS_SUCCESS) { dnn->BackendDestroyDescriptor(p->plan); }
    return status == CUDNN_STATUS_SUCCESS;
}

int tn__dnn_plans(tn__dnn_graph *g, tn__dnn_target target, unsigned refused, int most,
                  tn__dnn_plan *plans) {
    descriptor config[MOST_CONFIGS];
    int64_t count = find_configurations(g, target, config);
    int made = 0;
    for (int64_t i = 0; i < count && made < most; i++) {
        if (!refused || !(notes_of(g, config[i]) & refused)) {
            made += plan_of(g, target, config[i], &plans[made]);
        }
    }
    if (made == 0 && !g->failed) {
        snprintf(g->why, TN__DNN_WHY, "cuDNN has no engine for %s (none of %d works)", g->name,
                 (int)count);
    }
    return made;
}

/* ---- Running --------------------------------------------------------------------------------- */

cudnnStatus_t tn__dnn_run(const tn__cudnn_table *dnn, cudnnHandle_t handle,
                          const tn__dnn_plan *plan, int64_t count, const int64_t *names,
                          void *const *addresses, void *workspace) {
    descriptor pack = NULL;
    cudnnStatus_t status =
        dnn->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status != CUDNN_STATUS_SUCCESS) { return status; }
    status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                      count, names);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                          CUDNN_TYPE_VOID_PTR, count, addresses);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                          CUDNN_TYPE_VOID_PTR, 1, &workspace);
    }
    status = status == CUDNN_STATUS_SUCCESS ? dnn->BackendFinalize(pack) : status;
    status =
        status == CUDNN_STATUS_SUCCESS ? dnn->BackendExecute(handle, plan->plan, pack) : status;
    dnn->BackendDestroyDescriptor(pack);
    return status;
}

#endif
