/* Attention as a graph of cuDNN's backend API.
 *
 * cuDNN has no attention call in C: we describe tensors and operations between them, and an engine
 * recognises the whole as flash attention. Intermediate tensors are virtual: they have dimensions
 * but no memory. The graphs below follow the mathematics (ops/nn/attention.c), in the form that the
 * engines look for:
 *
 *     keys, and in backward values too, are transposed to (B, G, D, T), by strides alone;
 *     a causal mask is GEN_INDEX, GEN_INDEX, CMP_GE, BINARY_SELECT;
 *     the deterministic backward writes dq directly; the fast one adds f32 parts of dq from many
 *     blocks into real memory, which must be zeroed first.
 *
 * dnn_graph.h has the functions that build graphs. */
#include "backends/cuda/sdpa_graph.h"

#if TN_HAVE_CUDNN

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef tn__dnn_descriptor descriptor;

/* The names of tensors with memory. Virtual ones are numbered from FIRST_VIRTUAL on. */
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

typedef struct graph {
    tn__dnn_graph base;
    const tn__sdpa_shape *shape;
    cudnnDataType_t type; /* of q, k, v */
    int64_t next_virtual;
} graph;

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

static descriptor graph_tensor(graph *g, int64_t name, cudnnDataType_t type, extent x,
                               tn__dnn_memory where) {
    return tn__dnn_tensor(&g->base, name, type, 4, x.size, x.stride, where);
}

static descriptor tensor_between(graph *g, cudnnDataType_t type, extent x) {
    return graph_tensor(g, g->next_virtual++, type, x, TN__DNN_VIRTUAL);
}

static descriptor graph_number(graph *g, int64_t name) {
    return graph_tensor(g, name, CUDNN_DATA_FLOAT, dense_extent(1, 1, 1, 1), TN__DNN_BY_VALUE);
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

/* mode(x, b) as a new virtual f32 tensor. */
static descriptor graph_pointwise(graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b,
                                  extent size) {
    descriptor y = tensor_between(g, CUDNN_DATA_FLOAT, size);
    tn__dnn_pointwise(&g->base, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
    return y;
}

static void product_to(graph *g, descriptor a, descriptor b, descriptor c) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor kind = tn__dnn_make(&g->base, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    tn__dnn_set(&g->base, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    tn__dnn_finish(&g->base, kind, "a product");
    descriptor operation = tn__dnn_make(&g->base, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    tn__dnn_add(&g->base, operation, "a product");
}

static descriptor graph_product(graph *g, descriptor a, descriptor b, extent size) {
    descriptor c = tensor_between(g, CUDNN_DATA_FLOAT, size);
    product_to(g, a, b, c);
    return c;
}

static void reduce_to(graph *g, cudnnReduceTensorOp_t mode, descriptor x, descriptor y) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor kind = tn__dnn_make(&g->base, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    tn__dnn_set(&g->base, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
                1, &mode);
    tn__dnn_set(&g->base, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    tn__dnn_finish(&g->base, kind, "a reduction");
    descriptor operation = tn__dnn_make(&g->base, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    tn__dnn_add(&g->base, operation, "a reduction");
}

static descriptor graph_reduce(graph *g, cudnnReduceTensorOp_t mode, descriptor x, extent size) {
    descriptor y = tensor_between(g, CUDNN_DATA_FLOAT, size);
    reduce_to(g, mode, x, y);
    return y;
}

static descriptor graph_reshape(graph *g, descriptor x, cudnnDataType_t type, extent size) {
    descriptor y = tensor_between(g, type, size);
    descriptor operation = tn__dnn_make(&g->base, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    tn__dnn_link(&g->base, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    tn__dnn_add(&g->base, operation, "a reshape");
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
    if (!g->shape->causal) { return s; }
    descriptor row = tensor_between(g, CUDNN_DATA_INT32, size),
               column = tensor_between(g, CUDNN_DATA_INT32, size);
    descriptor seen = tensor_between(g, CUDNN_DATA_BOOLEAN, size);
    descriptor masked = tensor_between(g, CUDNN_DATA_FLOAT, size);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, s, NULL, NULL, row);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3, s, NULL, NULL,
                      column);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL,
                      seen);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, s,
                      graph_number(g, LOWEST), seen, masked);
    return masked;
}

/* ---- The two graphs -------------------------------------------------------------------------- */

static void forward_graph(graph *g) {
    const tn__sdpa_shape *s = g->shape;
    extent size = scores_of(g), rows = rows_of(g);
    descriptor q = graph_tensor(g, Q, g->type, query_extent(g, s->q), TN__DNN_REAL);
    descriptor k =
        graph_tensor(g, K, g->type, transposed_extent(key_extent(g, s->k)), TN__DNN_REAL);
    descriptor v = graph_tensor(g, V, g->type, key_extent(g, s->v), TN__DNN_REAL);
    descriptor y = graph_tensor(g, Y, g->type, query_extent(g, s->y), TN__DNN_REAL);
    descriptor lse = graph_tensor(g, LSE, CUDNN_DATA_FLOAT, rows, TN__DNN_REAL);
    descriptor score = masked_scores(g, graph_scores(g, q, k, graph_number(g, SCALE)));
    descriptor most = graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, score, rows);
    descriptor below = graph_pointwise(g, CUDNN_POINTWISE_SUB, score, most, size);
    descriptor weight = graph_pointwise(g, CUDNN_POINTWISE_EXP, below, NULL, size);
    descriptor sum = graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, weight, rows);
    descriptor log = graph_pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, rows);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, most, log, NULL, lse);
    descriptor p = tensor_between(g, g->type, size);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, weight, sum, NULL, p);
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

/* rows of dy times rows of y, in real memory as the engines require */
static descriptor row_sums(graph *g, descriptor dy, descriptor y) {
    const tn__sdpa_shape *s = g->shape;
    extent rows = rows_of(g), by_time = dense_extent(s->batch, s->heads, s->queries, s->width);
    by_time.stride[2] = s->heads * s->width;
    descriptor sum = graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD,
                                  graph_pointwise(g, CUDNN_POINTWISE_MUL, dy, y, by_time), rows);
    descriptor kept = graph_tensor(g, ROW_SUMS, CUDNN_DATA_FLOAT, rows, TN__DNN_REAL);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, sum,
                      graph_number(g, ONE), NULL, kept);
    return kept;
}

static void query_gradient(graph *g, descriptor ds, descriptor k) {
    const tn__sdpa_shape *s = g->shape;
    descriptor dq = graph_tensor(g, DQ, g->type, query_extent(g, s->dq), TN__DNN_REAL);
    if (s->deterministic) {
        product_to(g, ds, k, dq);
        return;
    }
    descriptor parts =
        graph_tensor(g, DQ_PARTS, CUDNN_DATA_FLOAT,
                     dense_extent(s->batch, s->heads, s->queries, s->width), TN__DNN_PARTS);
    product_to(g, ds, k, parts);
    tn__dnn_pointwise(&g->base, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, parts, NULL, NULL,
                      dq);
}

static void backward_graph(graph *g) {
    const tn__sdpa_shape *s = g->shape;
    extent size = scores_of(g);
    extent by_key = transposed_extent(size);
    descriptor q = graph_tensor(g, Q, g->type, query_extent(g, s->q), TN__DNN_REAL);
    descriptor k =
        graph_tensor(g, K, g->type, transposed_extent(key_extent(g, s->k)), TN__DNN_REAL);
    descriptor v =
        graph_tensor(g, V, g->type, transposed_extent(key_extent(g, s->v)), TN__DNN_REAL);
    descriptor y = graph_tensor(g, Y, g->type, query_extent(g, s->y), TN__DNN_REAL);
    descriptor dy = graph_tensor(g, DY, g->type, query_extent(g, s->dy), TN__DNN_REAL);
    descriptor lse = graph_tensor(g, LSE, CUDNN_DATA_FLOAT, rows_of(g), TN__DNN_REAL);
    descriptor dk = graph_tensor(g, DK, g->type, key_extent(g, s->dk), TN__DNN_REAL);
    descriptor dv = graph_tensor(g, DV, g->type, key_extent(g, s->dv), TN__DNN_REAL);
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

/* Why this version must not be used, though it may well build a plan; NULL: no known reason. From
 * what NVIDIA's cudnn-frontend 1.23 refuses or works around (sdpa_support_surface.h and
 * pre_validate_node of scaled_dot_product_flash_attention.h), PyTorch (MHA.cpp, sdp_utils.cpp), and
 * cuDNN's release notes. */
static const char *known_fault(int number, int major, const tn__sdpa_shape *s) {
    if (number == 91000 || number == 91001) { return "attention is wrong in 9.10.0 and 9.10.1"; }
    if (s->batch > UINT16_MAX || s->heads > UINT16_MAX) {
        return "more than 65535 sequences or heads fail";
    }
    if (!s->backward) { return NULL; }
    if (s->keys == 1) { return "a single key has no gradients"; }
    if (number < 90501 && memcmp(s->dy, s->y, sizeof(s->y)) != 0) {
        return "before 9.5.1 dy is read with y's strides";
    }
    if (number < 91501 && s->keys % 128 != 0) {
        return "before 9.15.1 backward reads beyond the keys unless 128 divides their number";
    }
    if (number < 91801 && major >= 10 && s->deterministic) {
        return "before 9.18.1 backward is not deterministic on Blackwell";
    }
    return NULL;
}

int tn__sdpa_plans(const tn__cudnn_table *dnn, tn__dnn_target target, const void *given, int most,
                   tn__dnn_plan *plans, char why[TN__DNN_WHY]) {
    const tn__sdpa_shape *shape = given;
    graph g = {.base = {.dnn = dnn, .name = "attention", .why = why},
               .shape = shape,
               .type = shape->f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
               .next_virtual = FIRST_VIRTUAL};
    const char *fault = known_fault(dnn->number, target.major, shape);
    snprintf(why, TN__DNN_WHY, "%s%s", fault ? "cuDNN: " : "", fault ? fault : "");
    if (fault) { return 0; }
    if (shape->backward) {
        backward_graph(&g);
    } else {
        forward_graph(&g);
    }
    unsigned refused = shape->deterministic ? TN__DNN_NOTE(NONDETERMINISTIC) : 0;
    int count = tn__dnn_plans(&g.base, target, refused, most, plans);
    tn__dnn_clear(&g.base);
    return count;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Scratch memory: the parts of dq, if they are in memory, the row sums, cuDNN's own. */
static size_t round_bytes(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static size_t bytes_of_sums(const tn__sdpa_shape *s) {
    return s->backward ? sizeof(float) * (size_t)(s->batch * s->heads * s->queries) : 0;
}

size_t tn__sdpa_zeroed(const tn__sdpa_shape *s) {
    return s->deterministic ? 0 : bytes_of_sums(s) * (size_t)s->width;
}

size_t tn__sdpa_workspace(const tn__sdpa_shape *s, const tn__dnn_plan *p) {
    return round_bytes(tn__sdpa_zeroed(s)) + round_bytes(bytes_of_sums(s)) +
           round_bytes((size_t)p->workspace);
}

static void *data_of(const tn_desc *d) {
    return d ? d->data : NULL;
}

cudnnStatus_t tn__sdpa_run(const tn__cudnn_table *dnn, cudnnHandle_t handle,
                           const tn__sdpa_shape *s, const tn__dnn_plan *p, const tn__attention *a,
                           void *workspace) {
    /* Read before the call returns. `lowest` is what NVIDIA masks with in each version. */
    float scale = (float)a->scale, lowest = dnn->number < 91000 ? -FLT_MAX : -INFINITY, one = 1;
    char *parts = workspace, *sums = parts + round_bytes(tn__sdpa_zeroed(s)),
         *own = sums + round_bytes(bytes_of_sums(s));
    /* Exactly the tensors that the graph has. */
    int64_t name[14] = {Q, K, V, Y, LSE, SCALE, DY, DQ, DK, DV, ONE, ROW_SUMS, DQ_PARTS};
    void *address[14] = {a->q->data, a->k->data,     a->v->data,     a->y->data,     a->lse->data,
                         &scale,     data_of(a->dy), data_of(a->dq), data_of(a->dk), data_of(a->dv),
                         &one,       sums,           parts};
    int64_t count = !s->backward ? 6 : s->deterministic ? 12 : 13;
    if (s->causal) {
        name[count] = LOWEST;
        address[count++] = &lowest;
    }
    return tn__dnn_run(dnn, handle, p, count, name, address, own);
}

#endif
