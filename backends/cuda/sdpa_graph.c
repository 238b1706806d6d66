/* Attention as a graph of cuDNN's backend interface.
 *
 * cuDNN has no attention call in C: one describes tensors and operations between them, and an
 * engine recognises the whole as flash attention. Intermediate tensors are virtual: they have
 * dimensions but no memory. So the graphs below read like the mathematics
 * (backends/ref/attention.c), and their form is what the engines look for:
 *
 *     keys, and in backward values too, are given transposed, (B, G, D, T): by strides alone;
 *     a causal mask is GEN_INDEX, GEN_INDEX, CMP_GE, BINARY_SELECT;
 *     the deterministic backward writes dq directly; the fast one adds f32 parts of dq from many
 *     blocks into real memory, which has to be zero at first.
 *
 * A failure inside a graph sticks: everything after it does nothing,
 * and the first reason is kept. */
#include "backends/cuda/sdpa_graph.h"

#if TN_HAVE_CUDNN

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

/* The names of tensors with memory. Virtual ones count on from FIRST_VIRTUAL. */
enum {
    Q = 1,
    K,
    V,
    Y,
    LSE,
    SCALE,
    LOWEST,
    ONE,
    DY,
    DQ,
    DK,
    DV,
    DQ_PARTS,
    ROW_SUMS,
    FIRST_VIRTUAL = 100
};
enum { MOST_DESCRIPTORS = 256, MOST_OPERATIONS = 32, MOST_CONFIGS = 8 };

typedef struct graph {
    const tn__cudnn_table *dnn;
    const tn__sdpa_shape *shape;
    cudnnDataType_t type; /* of q, k, v */
    descriptor made[MOST_DESCRIPTORS], operation[MOST_OPERATIONS];
    int count, operations;
    int64_t next_virtual;
    bool failed;
    char *why;
} graph;

struct tn__sdpa_plan {
    descriptor plan;
    int64_t own;            /* bytes that cuDNN asks for */
    int64_t dq_parts, sums; /* bytes of those tensors, in front of it */
    bool backward, causal;
};

/* ---- Descriptors ----------------------------------------------------------------------------- */

static void graph_check(graph *g, cudnnStatus_t status, const char *what) {
    if (status != CUDNN_STATUS_SUCCESS && !g->failed) {
        char words[160] = "";
        g->dnn->GetLastErrorString(words, sizeof(words));
        snprintf(g->why, TN__SDPA_WHY, "cuDNN, %s: %s%s%s", what, g->dnn->GetErrorString(status),
                 words[0] ? ": " : "", words);
        g->failed = true;
    }
}

static descriptor descriptor_make(graph *g, cudnnBackendDescriptorType_t type) {
    descriptor d = NULL;
    if (!g->failed && g->count == MOST_DESCRIPTORS) {
        graph_check(g, CUDNN_STATUS_ALLOC_FAILED, "a graph");
    }
    if (!g->failed) {
        graph_check(g, g->dnn->BackendCreateDescriptor(type, &d), "a descriptor");
    }
    if (!g->failed) {
        g->made[g->count++] = d;
    }
    return d;
}

static void descriptor_set(graph *g, descriptor d, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (!g->failed) {
        graph_check(g, g->dnn->BackendSetAttribute(d, name, type, count, values), "an attribute");
    }
}

static void set_descriptor(graph *g, descriptor d, cudnnBackendAttributeName_t name,
                           descriptor value) {
    descriptor_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void descriptor_finish(graph *g, descriptor d, const char *what) {
    if (!g->failed) {
        graph_check(g, g->dnn->BackendFinalize(d), what);
    }
}

static void graph_forget(graph *g) {
    while (g->count > 0) {
        g->dnn->BackendDestroyDescriptor(g->made[--g->count]);
    }
}

/* ---- Tensors --------------------------------------------------------------------------------- */

typedef struct extent {
    int64_t size[4], stride[4];
} extent;

static extent dense_extent(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (extent){{a, b, c, d}, {b * c * d, c * d, d, 1}};
}

static extent strided_extent(int64_t a, int64_t b, int64_t c, int64_t d, const int64_t stride[4]) {
    return (extent){{a, b, c, d}, {stride[0], stride[1], stride[2], stride[3]}};
}

static extent transposed_extent(extent x) {
    return (extent){{x.size[0], x.size[1], x.size[3], x.size[2]},
                    {x.stride[0], x.stride[1], x.stride[3], x.stride[2]}};
}

typedef enum memory { REAL, VIRTUAL, BY_VALUE, PARTS } memory;

static descriptor graph_tensor(graph *g, int64_t name, cudnnDataType_t type, extent x,
                               memory where) {
    descriptor d = descriptor_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = where == BY_VALUE ? 4 : 16;
    bool is_virtual = where == VIRTUAL, by_value = where == BY_VALUE;
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, x.size);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, x.stride);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    if (where == PARTS) { /* in the order in which the tensor cores hold them */
        cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_F16x16;
        descriptor_set(g, d, CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE,
                       1, &order);
    }
    descriptor_finish(g, d, "a tensor");
    return d;
}

static descriptor tensor_between(graph *g, cudnnDataType_t type, extent x) {
    return graph_tensor(g, g->next_virtual++, type, x, VIRTUAL);
}

static descriptor graph_number(graph *g, int64_t name) {
    return graph_tensor(g, name, CUDNN_DATA_FLOAT, dense_extent(1, 1, 1, 1), BY_VALUE);
}

static extent scores_of(const graph *g) {
    return dense_extent(g->shape->batch, g->shape->heads, g->shape->queries, g->shape->keys);
}
static extent rows_of(const graph *g) {
    return dense_extent(g->shape->batch, g->shape->heads, g->shape->queries, 1);
}
static extent query_extent(const graph *g, const int64_t stride[4]) {
    const tn__sdpa_shape *s = g->shape;
    return strided_extent(s->batch, s->heads, s->queries, s->width, stride);
}
static extent key_extent(const graph *g, const int64_t stride[4]) {
    const tn__sdpa_shape *s = g->shape;
    return strided_extent(s->batch, s->groups, s->keys, s->width, stride);
}

/* ---- Operations ------------------------------------------------------------------------------ */

static void add_operation(graph *g, descriptor operation, const char *what) {
    descriptor_finish(g, operation, what);
    if (!g->failed) {
        g->operation[g->operations++] = operation;
    }
}

/* y = mode(x, b, t); b and t may be NULL. `axis` is read by GEN_INDEX. */
static void pointwise_to(graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis,
                         descriptor x, descriptor b, descriptor t, descriptor y) {
    descriptor kind = descriptor_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    descriptor_set(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    descriptor_set(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        descriptor_set(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    }
    descriptor_finish(g, kind, "a pointwise operation");
    descriptor operation = descriptor_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) {
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    }
    if (t) {
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    }
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_operation(g, operation, "a pointwise operation");
}

/* mode(x, b) as a new f32 tensor between. */
static descriptor graph_pointwise(graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b,
                                  extent size) {
    descriptor y = tensor_between(g, CUDNN_DATA_FLOAT, size);
    pointwise_to(g, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
    return y;
}

static void product_to(graph *g, descriptor a, descriptor b, descriptor c) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor kind = descriptor_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    descriptor_set(g, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    descriptor_finish(g, kind, "a product");
    descriptor operation = descriptor_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add_operation(g, operation, "a product");
}

static descriptor graph_product(graph *g, descriptor a, descriptor b, extent size) {
    descriptor c = tensor_between(g, CUDNN_DATA_FLOAT, size);
    product_to(g, a, b, c);
    return c;
}

static void reduce_to(graph *g, cudnnReduceTensorOp_t mode, descriptor x, descriptor y) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor kind = descriptor_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    descriptor_set(g, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                   &mode);
    descriptor_set(g, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    descriptor_finish(g, kind, "a reduction");
    descriptor operation = descriptor_make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    add_operation(g, operation, "a reduction");
}

static descriptor graph_reduce(graph *g, cudnnReduceTensorOp_t mode, descriptor x, extent size) {
    descriptor y = tensor_between(g, CUDNN_DATA_FLOAT, size);
    reduce_to(g, mode, x, y);
    return y;
}

static descriptor graph_reshape(graph *g, descriptor x, cudnnDataType_t type, extent size) {
    descriptor y = tensor_between(g, type, size);
    descriptor operation = descriptor_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(g, operation, "a reshape");
    return y;
}

/* scale q k^T */
static descriptor graph_scores(graph *g, descriptor q, descriptor k, descriptor scale) {
    extent size = scores_of(g);
    return graph_pointwise(g, CUDNN_POINTWISE_MUL, graph_product(g, q, k, size), scale, size);
}

/* s, and LOWEST where a key may not be seen */
static descriptor masked_scores(graph *g, descriptor s) {
    extent size = scores_of(g);
    if (!g->shape->causal) {
        return s;
    }
    descriptor row = tensor_between(g, CUDNN_DATA_INT32, size),
               column = tensor_between(g, CUDNN_DATA_INT32, size);
    descriptor seen = tensor_between(g, CUDNN_DATA_BOOLEAN, size);
    descriptor masked = tensor_between(g, CUDNN_DATA_FLOAT, size);
    pointwise_to(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, s, NULL, NULL, row);
    pointwise_to(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3, s, NULL, NULL, column);
    pointwise_to(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, seen);
    pointwise_to(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, s, graph_number(g, LOWEST),
                 seen, masked);
    return masked;
}

/* ---- The two graphs -------------------------------------------------------------------------- */

static void forward_graph(graph *g) {
    const tn__sdpa_shape *s = g->shape;
    extent size = scores_of(g), rows = rows_of(g);
    descriptor q = graph_tensor(g, Q, g->type, query_extent(g, s->q), REAL);
    descriptor k = graph_tensor(g, K, g->type, transposed_extent(key_extent(g, s->k)), REAL);
    descriptor v = graph_tensor(g, V, g->type, key_extent(g, s->v), REAL);
    descriptor y = graph_tensor(g, Y, g->type, query_extent(g, s->y), REAL);
    descriptor lse = graph_tensor(g, LSE, CUDNN_DATA_FLOAT, rows, REAL);
    descriptor score = masked_scores(g, graph_scores(g, q, k, graph_number(g, SCALE)));
    descriptor most = graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, score, rows);
    descriptor below = graph_pointwise(g, CUDNN_POINTWISE_SUB, score, most, size);
    descriptor weight = graph_pointwise(g, CUDNN_POINTWISE_EXP, below, NULL, size);
    descriptor sum = graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, weight, rows);
    descriptor log = graph_pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, rows);
    pointwise_to(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, most, log, NULL, lse);
    descriptor p = tensor_between(g, g->type, size);
    pointwise_to(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, weight, sum, NULL, p);
    product_to(g, p, v, y);
}

/* out = a b; with groups, the products of a group's heads are added up. */
static void group_product(graph *g, descriptor a, descriptor b, descriptor out) {
    const tn__sdpa_shape *s = g->shape;
    if (s->heads == s->groups) {
        product_to(g, a, b, out);
        return;
    }
    descriptor each =
        tensor_between(g, g->type, dense_extent(s->batch, s->heads, s->keys, s->width));
    product_to(g, a, b, each);
    reduce_to(g, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

/* rows of dy times rows of y, in real memory as the engines want it */
static descriptor row_sums(graph *g, descriptor dy, descriptor y) {
    const tn__sdpa_shape *s = g->shape;
    extent rows = rows_of(g), by_time = dense_extent(s->batch, s->heads, s->queries, s->width);
    by_time.stride[2] = s->heads * s->width;
    descriptor sum = graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD,
                                  graph_pointwise(g, CUDNN_POINTWISE_MUL, dy, y, by_time), rows);
    descriptor kept = graph_tensor(g, ROW_SUMS, CUDNN_DATA_FLOAT, rows, REAL);
    pointwise_to(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, sum, graph_number(g, ONE), NULL,
                 kept);
    return kept;
}

static void query_gradient(graph *g, descriptor ds, descriptor k) {
    const tn__sdpa_shape *s = g->shape;
    descriptor dq = graph_tensor(g, DQ, g->type, query_extent(g, s->dq), REAL);
    if (s->deterministic) {
        product_to(g, ds, k, dq);
        return;
    }
    descriptor parts = graph_tensor(g, DQ_PARTS, CUDNN_DATA_FLOAT,
                                    dense_extent(s->batch, s->heads, s->queries, s->width), PARTS);
    product_to(g, ds, k, parts);
    pointwise_to(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, parts, NULL, NULL, dq);
}

static void backward_graph(graph *g) {
    const tn__sdpa_shape *s = g->shape;
    extent size = scores_of(g);
    extent by_key = transposed_extent(size);
    descriptor q = graph_tensor(g, Q, g->type, query_extent(g, s->q), REAL);
    descriptor k = graph_tensor(g, K, g->type, transposed_extent(key_extent(g, s->k)), REAL);
    descriptor v = graph_tensor(g, V, g->type, transposed_extent(key_extent(g, s->v)), REAL);
    descriptor y = graph_tensor(g, Y, g->type, query_extent(g, s->y), REAL);
    descriptor dy = graph_tensor(g, DY, g->type, query_extent(g, s->dy), REAL);
    descriptor lse = graph_tensor(g, LSE, CUDNN_DATA_FLOAT, rows_of(g), REAL);
    descriptor dk = graph_tensor(g, DK, g->type, key_extent(g, s->dk), REAL);
    descriptor dv = graph_tensor(g, DV, g->type, key_extent(g, s->dv), REAL);
    descriptor scale = graph_number(g, SCALE), sums = row_sums(g, dy, y);
    descriptor below =
        graph_pointwise(g, CUDNN_POINTWISE_SUB, graph_scores(g, q, k, scale), lse, size);
    descriptor p = graph_pointwise(g, CUDNN_POINTWISE_EXP, masked_scores(g, below), NULL, size);
    group_product(g, graph_reshape(g, p, g->type, by_key), dy, dv);
    descriptor slope =
        graph_pointwise(g, CUDNN_POINTWISE_SUB, graph_product(g, dy, v, size), sums, size);
    descriptor ds = graph_pointwise(g, CUDNN_POINTWISE_MUL, slope, p, size);
    ds = graph_pointwise(g, CUDNN_POINTWISE_MUL, ds, scale, size);
    group_product(g, graph_reshape(g, ds, g->type, by_key), q, dk);
    query_gradient(g, ds, graph_reshape(g, k, g->type, key_extent(g, s->k)));
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Why this version must not be asked, though it may well build a plan; NULL: nothing is known. This
 * is what NVIDIA's cudnn-frontend 1.23 refuses or works around (sdpa_support_surface.h and
 * pre_validate_node of scaled_dot_product_flash_attention.h), PyTorch (MHA.cpp, sdp_utils.cpp), and
 * cuDNN's release notes. */
static const char *known_fault(int number, int major, const tn__sdpa_shape *s) {
    if (number == 91000 || number == 91001) {
        return "attention is wrong in 9.10.0 and 9.10.1";
    }
    if (s->batch > UINT16_MAX || s->heads > UINT16_MAX) {
        return "more than 65535 sequences or heads fail";
    }
    if (!s->backward) {
        return NULL;
    }
    if (s->keys == 1) {
        return "a single key has no gradients";
    }
    if (number < 90501 && memcmp(s->dy, s->y, sizeof(s->y)) != 0) {
        return "before 9.5.1 dy is read with y's strides";
    }
    if (number < 91501 && s->keys % 128 != 0) {
        return "before 9.15.1 backward reads beyond keys that are no multiple of 128";
    }
    if (number < 91801 && major >= 10 && s->deterministic) {
        return "before 9.18.1 backward is not deterministic on Blackwell";
    }
    return NULL;
}

/* Whether an engine says that it adds in the order of arrival. */
static bool arrival_order(const graph *g, descriptor config) {
    descriptor engine = NULL;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    bool found = false;
    if (g->dnn->BackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS) {
        return false;
    }
    if (g->dnn->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                    &engine) == CUDNN_STATUS_SUCCESS &&
        g->dnn->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                    CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                    &count, notes) == CUDNN_STATUS_SUCCESS) {
        for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
            found = found || notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        }
    }
    g->dnn->BackendDestroyDescriptor(engine);
    return found;
}

/* The heuristic's engine configurations for the graph, best first; the count. */
static int64_t find_configurations(graph *g, tn__sdpa_target target, descriptor *config) {
    descriptor operations = descriptor_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    descriptor_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   g->operations, g->operation);
    if (target.handle) {
        descriptor_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                       &target.handle);
    }
    descriptor_finish(g, operations, "attention's graph");
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor heuristic = descriptor_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    descriptor_set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if TN__SDPA_DESCRIBED
    if (target.described) {
        set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.described);
    }
#endif
    descriptor_finish(g, heuristic, "the choice of an engine for attention");
    for (int i = 0; i < MOST_CONFIGS; i++) {
        config[i] = descriptor_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    int64_t count = 0;
    if (!g->failed) {
        graph_check(g,
                    g->dnn->BackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_CONFIGS, &count,
                                                config),
                    "the choice of an engine for attention");
    }
    return g->failed ? 0 : count;
}

/* The plan of one configuration; NULL: it does not build. */
static tn__sdpa_plan *plan_of(const graph *g, tn__sdpa_target target, descriptor config) {
    const tn__cudnn_table *dnn = g->dnn;
    const tn__sdpa_shape *s = g->shape;
    tn__sdpa_plan *p = calloc(1, sizeof(*p));
    int64_t count;
    if (!p || dnn->BackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan) !=
                  CUDNN_STATUS_SUCCESS) {
        free(p);
        return NULL;
    }
    cudnnStatus_t status =
        dnn->BackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (status == CUDNN_STATUS_SUCCESS && target.handle) {
        status = dnn->BackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                          CUDNN_TYPE_HANDLE, 1, &target.handle);
    }
#if TN__SDPA_DESCRIBED
    if (status == CUDNN_STATUS_SUCCESS && target.described) {
        status = dnn->BackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target.described);
    }
#endif
    status = status == CUDNN_STATUS_SUCCESS ? dnn->BackendFinalize(p->plan) : status;
    if (status == CUDNN_STATUS_SUCCESS) {
        status = dnn->BackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &count, &p->own);
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        tn__sdpa_plan_free(dnn, p);
        return NULL;
    }
    int64_t rows = s->batch * s->heads * s->queries, size = (int64_t)sizeof(float);
    p->backward = s->backward != 0;
    p->causal = s->causal != 0;
    p->sums = p->backward ? rows * size : 0;
    p->dq_parts = p->backward && !s->deterministic ? rows * s->width * size : 0;
    return p;
}

int tn__sdpa_plans(const tn__cudnn_table *dnn, tn__sdpa_target target, const tn__sdpa_shape *shape,
                   int most, tn__sdpa_plan **plans, char why[TN__SDPA_WHY]) {
    graph g = {.dnn = dnn,
               .shape = shape,
               .type = shape->f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
               .next_virtual = FIRST_VIRTUAL,
               .why = why};
    descriptor config[MOST_CONFIGS];
    int made = 0;
    const char *fault = known_fault(dnn->number, target.major, shape);
    snprintf(why, TN__SDPA_WHY, "%s%s", fault ? "cuDNN: " : "", fault ? fault : "");
    if (fault) {
        return 0;
    }
    if (shape->backward) {
        backward_graph(&g);
    } else {
        forward_graph(&g);
    }
    int64_t count = find_configurations(&g, target, config);
    for (int64_t i = 0; i < count && made < most; i++) {
        if (!shape->deterministic || !arrival_order(&g, config[i])) {
            plans[made] = plan_of(&g, target, config[i]);
            made += plans[made] != NULL;
        }
    }
    if (made == 0 && !g.failed) {
        snprintf(why, TN__SDPA_WHY, "cuDNN has no engine for this attention (of %d, none builds)",
                 (int)count);
    }
    graph_forget(&g);
    return made;
}

void tn__sdpa_plan_free(const tn__cudnn_table *dnn, tn__sdpa_plan *p) {
    if (p) {
        dnn->BackendDestroyDescriptor(p->plan);
        free(p);
    }
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Scratch memory: the parts of dq, the row sums, cuDNN's own. */
static size_t round_bytes(int64_t bytes) {
    return ((size_t)bytes + 255) / 256 * 256;
}

size_t tn__sdpa_workspace(const tn__sdpa_plan *p) {
    return round_bytes(p->dq_parts) + round_bytes(p->sums) + round_bytes(p->own);
}

size_t tn__sdpa_zeroed(const tn__sdpa_plan *p) {
    return (size_t)p->dq_parts;
}

cudnnStatus_t tn__sdpa_run(const tn__cudnn_table *dnn, cudnnHandle_t handle, const tn__sdpa_plan *p,
                           const tn__sdpa_data *d, void *workspace) {
    /* Read before the call returns. What masks is NVIDIA's choice for each version. */
    float scale = d->scale, lowest = dnn->number < 91000 ? -FLT_MAX : -INFINITY, one = 1;
    char *parts = workspace, *sums = parts + round_bytes(p->dq_parts),
         *own = sums + round_bytes(p->sums);
    /* The tensors that the graph has, and no others. */
    int64_t name[14] = {Q, K, V, Y, LSE, SCALE, DY, DQ, DK, DV, ONE, ROW_SUMS, DQ_PARTS};
    void *address[14] = {d->q,  d->k,  d->v,  d->y, d->lse, &scale, d->dy,
                         d->dq, d->dk, d->dv, &one, sums,   parts};
    int64_t count = !p->backward ? 6 : p->dq_parts > 0 ? 13 : 12;
    if (p->causal) {
        name[count] = LOWEST;
        address[count++] = &lowest;
    }
    descriptor pack = NULL;
    cudnnStatus_t status =
        dnn->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                      count, name);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                          CUDNN_TYPE_VOID_PTR, count, address);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                          CUDNN_TYPE_VOID_PTR, 1, &own);
    }
    status = status == CUDNN_STATUS_SUCCESS ? dnn->BackendFinalize(pack) : status;
    status = status == CUDNN_STATUS_SUCCESS ? dnn->BackendExecute(handle, p->plan, pack) : status;
    dnn->BackendDestroyDescriptor(pack);
    return status;
}

#endif
