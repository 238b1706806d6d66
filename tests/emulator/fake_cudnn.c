/* A stand-in for libcudnn.so.9 over the emulator: TERN_CUDNN names it. It takes graphs of one
 * convolution, or one of its gradients, and a bias after it, and runs them with ref's kernels; for
 * anything else it reports no engine; but where the emulator only records (record.cc), or
 * FAKE_CUDNN_ATTENTION is set, it takes graphs of products, which are attention's: these it
 * computes from the names that sdpa_graph.c gives to q, k, v and the rest, not from the graph.
 *
 * A descriptor is a bag of attributes until it is finalised. A plan keeps nothing of its graph but
 * the work, so that the graph's descriptors may be destroyed before it runs. It refuses what cuDNN
 * refuses: sizes that do not match, a tensor without memory, attributes that are set too late.
 * Notes mark the engine that rounds f32 and the one that is not deterministic.
 * FAKE_CUDNN_STARTS=no: it does not start.
 */
#define _GNU_SOURCE
#include "tests/emulator/fake_cudnn.h"

#include "backends/attention.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/loaded.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/sys/op.h>

#define EXPORT __attribute__((visibility("default")))

enum { ATTRIBUTES = 16, BYTES = 256, NAMES = 16, WORKSPACE = 512, ENGINES = 3 };

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    unsigned char bytes[BYTES];
} attribute;

/* One tensor of a graph, as the work keeps it. */
typedef struct operand {
    int64_t name;
    tn_desc d; /* five dimensions */
    bool is_virtual;
} operand;

typedef struct conv_work {
    cudnnBackendDescriptorType_t kind;
    operand y, x, w, b; /* b.name 0: none */
    tn_conv_args args;
    void *workspace;
} conv_work;

typedef struct bag {
    cudnnBackendDescriptorType_t type;
    bool finalised;
    int attributes;
    attribute at[ATTRIBUTES];
    int engine; /* of a configuration or a plan */
    const struct bag *graph;
    conv_work work;       /* of a plan */
    bool attends, causal; /* a plan of products, without work … */
    double bytes, flops;  /* … but with these, and its tensors by their names */
    operand named[NAMES];
} bag;

struct cudnnContext {
    void *stream;
    int device;
};

static atomic_int runs, plans, last_engine;

EXPORT int fake_cudnn_runs(void) {
    return runs;
}

EXPORT int fake_cudnn_plans(void) {
    return plans;
}

EXPORT int fake_cudnn_engine(void) {
    return last_engine;
}

/* ---- Attributes ------------------------------------------------------------------------------ */

static const attribute *find_attribute(const bag *b, cudnnBackendAttributeName_t name) {
    for (int i = 0; i < b->attributes; i++) {
        if (b->at[i].name == name) { return &b->at[i]; }
    }
    return NULL;
}

/* Its values; false: it is not set, or has a different number of values. */
static bool read_values(const bag *b, cudnnBackendAttributeName_t name, int64_t count, void *to,
                        size_t size) {
    const attribute *a = find_attribute(b, name);
    if (!a || a->count != count) { return false; }
    memcpy(to, a->bytes, (size_t)count * size);
    return true;
}

/* NULL: it is not set, or not finalised. */
static const bag *read_link(const bag *b, cudnnBackendAttributeName_t name) {
    const bag *found = NULL;
    return read_values(b, name, 1, &found, sizeof(found)) && found->finalised ? found : NULL;
}

static size_t size_of_type(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4; /* enumerations and floats */
    }
}

/* ---- From a graph to work -------------------------------------------------------------------- */

static bool read_dtype(const bag *t, cudnnBackendAttributeName_t name, tn_dtype *dtype) {
    cudnnDataType_t type;
    if (!read_values(t, name, 1, &type, sizeof(type))) { return false; }
    *dtype = type == CUDNN_DATA_BFLOAT16  ? TN_BF16
             : type == CUDNN_DATA_HALF    ? TN_F16
             : type == CUDNN_DATA_INT32   ? TN_I32
             : type == CUDNN_DATA_BOOLEAN ? TN_BOOL
                                          : TN_F32;
    return *dtype != TN_F32 || type == CUDNN_DATA_FLOAT;
}

static bool read_operand(const bag *t, operand *o) {
    const attribute *dims = t ? find_attribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS) : NULL;
    int64_t ndim = dims ? dims->count : 0, size[5], stride[5];
    *o = (operand){.d = {.ndim = 5}};
    if ((ndim != 4 && ndim != 5) ||
        !read_values(t, CUDNN_ATTR_TENSOR_DIMENSIONS, ndim, size, sizeof(*size)) ||
        !read_values(t, CUDNN_ATTR_TENSOR_STRIDES, ndim, stride, sizeof(*stride)) ||
        !read_values(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &o->name, sizeof(o->name)) ||
        !read_values(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 1, &o->is_virtual, sizeof(bool)) ||
        !read_dtype(t, CUDNN_ATTR_TENSOR_DATA_TYPE, &o->d.dtype)) {
        return false;
    }
    for (int i = 0; i < 5; i++) {
        int from = ndim == 5 || i < 2 ? i : i - 1;
        bool there = ndim == 5 || i != 2;
        o->d.size[i] = there ? size[from] : 1;
        o->d.stride[i] = there ? stride[from] : 1;
    }
    return true;
}

/* The attributes of the operands of an operation, by kind. */
typedef struct operation_names {
    cudnnBackendDescriptorType_t kind;
    cudnnBackendAttributeName_t sliding, y, x, w;
} operation_names;

static const operation_names kinds[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW},
};

static operand *result_of(conv_work *work) {
    return work->kind == kinds[0].kind   ? &work->y
           : work->kind == kinds[1].kind ? &work->x
                                         : &work->w;
}

/* Whether y has the sizes that follow from x, w and the attributes. */
static bool sliding_fits(conv_work *work, const bag *sliding) {
    int64_t spatial, after[3];
    if (!sliding ||
        !read_values(sliding, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &spatial, sizeof(spatial)) ||
        (spatial != 2 && spatial != 3)) {
        return false;
    }
    tn_conv_args *a = &work->args;
    int skipped = 3 - (int)spatial;
    *a = (tn_conv_args){{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
    memset(after, 0, sizeof(after));
    if (!read_values(sliding, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, spatial, a->stride + skipped,
                     8) ||
        !read_values(sliding, CUDNN_ATTR_CONVOLUTION_DILATIONS, spatial, a->dilation + skipped,
                     8) ||
        !read_values(sliding, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, spatial, a->padding + skipped,
                     8) ||
        !read_values(sliding, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, spatial, after + skipped, 8)) {
        return false;
    }
    const tn_desc *y = &work->y.d, *x = &work->x.d, *w = &work->w.d;
    bool fits = w->size[1] > 0 && x->size[1] % w->size[1] == 0 && y->size[1] == w->size[0] &&
                y->size[0] == x->size[0];
    a->groups = fits ? x->size[1] / w->size[1] : 1;
    for (int i = 0; i < 3; i++) {
        int64_t padded = x->size[2 + i] + a->padding[i] + after[i],
                reach = a->dilation[i] * (w->size[2 + i] - 1) + 1;
        fits = fits && after[i] >= 0 && padded >= reach &&
               (padded - reach) / a->stride[i] + 1 == y->size[2 + i];
    }
    return fits && w->size[0] % a->groups == 0;
}

/* The operation `add` adds the bias to the work's virtual result. */
static bool take_bias(conv_work *work, const bag *add) {
    const bag *pw = read_link(add, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    cudnnPointwiseMode_t mode;
    operand bare, to, *result = result_of(work);
    if (!pw || !read_values(pw, CUDNN_ATTR_POINTWISE_MODE, 1, &mode, sizeof(mode)) ||
        mode != CUDNN_POINTWISE_ADD ||
        !read_operand(read_link(add, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), &bare) ||
        !read_operand(read_link(add, CUDNN_ATTR_OPERATION_POINTWISE_BDESC), &work->b) ||
        !read_operand(read_link(add, CUDNN_ATTR_OPERATION_POINTWISE_YDESC), &to) ||
        !result->is_virtual || bare.name != result->name) {
        return false;
    }
    *result = to;
    tn_desc *b = &work->b.d; /* (1, C, 1, 1, 1) as (C) */
    bool right = b->size[1] == to.d.size[1] && b->size[0] == 1 && b->size[3] == 1 &&
                 b->size[4] == 1 && work->kind != kinds[2].kind;
    b->ndim = 1;
    b->size[0] = b->size[1];
    b->stride[0] = b->stride[1];
    return right;
}

/* False: no engine takes this graph. */
static bool work_of(const bag *graph, conv_work *work) {
    const attribute *ops = find_attribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const bag *op[2] = {NULL, NULL};
    if (!ops || ops->count < 1 || ops->count > 2) { return false; }
    memcpy(op, ops->bytes, (size_t)ops->count * sizeof(*op));
    const operation_names *names = NULL;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        names = op[0]->type == kinds[i].kind ? &kinds[i] : names;
    }
    *work = (conv_work){.kind = op[0]->type};
    if (!names || !read_operand(read_link(op[0], names->y), &work->y) ||
        !read_operand(read_link(op[0], names->x), &work->x) ||
        !read_operand(read_link(op[0], names->w), &work->w) ||
        !sliding_fits(work, read_link(op[0], names->sliding)) ||
        (op[1] && !take_bias(work, op[1]))) {
        return false;
    }
    return !work->y.is_virtual && !work->x.is_virtual && !work->w.is_virtual;
}

/* ---- Counting -------------------------------------------------------------------------------- */

/* Writes a line into the emulator's record; false: it has none. */
static bool record_line(const char *line) {
    __typeof__(&tern_emulator_record) record;
    *(void **)&record = dlsym(loaded_emulator(), "tern_emulator_record");
    return record && record(line);
}

static double count_elements(const operand *o) {
    double count = 1;
    for (int i = 0; i < 5; i++) {
        count *= (double)o->d.size[i];
    }
    return count;
}

static double count_bytes(const operand *o) {
    return count_elements(o) * (double)tn_dtype_size(o->d.dtype);
}

/* Adds an operation's product, and those of its tensors that have memory and are not in names[]
 * yet. */
static int add_operation(bag *plan, const bag *op, int64_t *names, int count) {
    operand left, out;
    for (int i = 0; i < op->attributes; i++) {
        operand o;
        const bag *t =
            op->at[i].type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? read_link(op, op->at[i].name) : NULL;
        bool real =
            t && t->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && read_operand(t, &o) && !o.is_virtual;
        for (int k = 0; k < count; k++) {
            real = real && names[k] != o.name;
        }
        if (real && count < NAMES) {
            names[count++] = o.name;
            plan->named[o.name < NAMES ? o.name : 0] = o;
            plan->bytes += count_bytes(&o);
        }
    }
    if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR &&
        read_operand(read_link(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC), &left) &&
        read_operand(read_link(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC), &out)) {
        plan->attends = true;
        plan->flops += 2 * count_elements(&out) * (double)left.d.size[4];
    }
    return count;
}

/* A plan of a graph that has a product: what it reads, writes and multiplies; half of that under a
 * causal mask. False: it has none. */
static bool count_attention(const bag *graph, bag *plan) {
    const attribute *ops = find_attribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const bag *op[BYTES / 8];
    int64_t names[NAMES];
    int named = 0, index = 0;
    memcpy(op, ops->bytes, (size_t)ops->count * sizeof(*op));
    for (int i = 0; i < ops->count; i++) {
        named = add_operation(plan, op[i], names, named);
        cudnnPointwiseMode_t mode;
        const bag *pw = op[i]->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR
                            ? read_link(op[i], CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                            : NULL;
        index += pw && read_values(pw, CUDNN_ATTR_POINTWISE_MODE, 1, &mode, sizeof(mode)) &&
                 mode == CUDNN_POINTWISE_GEN_INDEX;
    }
    plan->causal = index > 0;
    plan->flops /= index > 0 ? 2 : 1;
    return plan->attends;
}

/* Makes a plan of a graph; false: no engine takes it. */
static bool make_plan(const bag *graph, bag *plan) {
    return work_of(graph, &plan->work) ||
           ((getenv("TERN_EMULATOR_RECORD") || getenv("FAKE_CUDNN_ATTENTION")) &&
            count_attention(graph, plan));
}

/* Records a run of the plan; false: it has to be done. */
static bool record_run(const bag *plan) {
    const operand *y = &plan->work.y, *x = &plan->work.x, *w = &plan->work.w;
    double bytes = plan->bytes, flops = plan->flops;
    if (!plan->attends) {
        bytes = count_bytes(y) + count_bytes(x) + count_bytes(w);
        flops = 2 * count_elements(y) * count_elements(w) / (double)w->d.size[0];
    }
    char line[96];
    snprintf(line, sizeof(line), "%s %.0f %.0f", plan->attends ? "attention" : "conv", bytes,
             flops);
    return record_line(line);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static bool run_work(void *user) {
    conv_work *w = user;
    const tn_backend *ref = tn_backend_named("ref");
    const tn_desc *b = w->b.name ? &w->b.d : NULL;
    memset(w->workspace, 0xFF, WORKSPACE); /* it is ours */
    if (w->kind == kinds[0].kind) {
        ref->conv(NULL, &w->y.d, &w->x.d, &w->w.d, b, &w->args);
    } else if (w->kind == kinds[1].kind) {
        ref->conv_backward_input(NULL, &w->x.d, &w->y.d, &w->w.d, b, &w->args);
    } else {
        ref->conv_backward_weight(NULL, &w->w.d, NULL, &w->y.d, &w->x.d, &w->args);
    }
    free(w);
    return true;
}

/* The tensor's address from the pack: present, and aligned as promised. */
static bool place_operand(operand *o, int64_t count, const int64_t *names, void *const *address) {
    for (int64_t i = 0; i < count && o->name; i++) {
        if (names[i] == o->name) {
            o->d.data = address[i];
            return (uintptr_t)address[i] % 16 == 0 && address[i];
        }
    }
    return o->name == 0;
}

/* sdpa_graph.c's names. */
enum { Q = 1, K, V, Y, LSE, SCALE, DY = 9, DQ, DK, DV };

typedef struct attention_work {
    tn_desc d[DV + 1];
    tn_attention_args args;
    bool backward;
} attention_work;

static bool run_attention(void *user) {
    attention_work *w = user;
    const tn_op *op = tn_op_named("attention");
    const tn_backend *ref = tn_backend_named("ref");
    tn_context *ctx = tn_context_of(tn_cpu());
    if (w->backward) {
        tn_op_run_back(op, &(tn_op_back){.args = &w->args,
                                         .kernels = ref,
                                         .ctx = ctx,
                                         .x = {&w->d[Q], &w->d[K], &w->d[V]},
                                         .y = {&w->d[Y], &w->d[LSE]},
                                         .dy = {&w->d[DY]},
                                         .dx = {&w->d[DQ], &w->d[DK], &w->d[DV]}});
    } else {
        tn_op_run(op, &(tn_op_call){.op = op,
                                    .args = &w->args,
                                    .kernels = ref,
                                    .ctx = ctx,
                                    .x = {&w->d[Q], &w->d[K], &w->d[V]},
                                    .y = {&w->d[Y], &w->d[LSE]}});
    }
    free(w);
    return true;
}

/* A tensor of four dimensions, of which the graph may see the last two exchanged. */
static tn_desc attention_operand(const operand *o, void *data, bool exchanged) {
    int last = exchanged ? 3 : 4, before = exchanged ? 4 : 3;
    return (tn_desc){data,
                     o->d.dtype,
                     4,
                     {o->d.size[0], o->d.size[1], o->d.size[before], o->d.size[last]},
                     {o->d.stride[0], o->d.stride[1], o->d.stride[before], o->d.stride[last]}};
}

static attention_work *attention_of(const bag *plan, int64_t count, const int64_t *names,
                                    void *const *address) {
    attention_work *w = calloc(1, sizeof(*w));
    for (int64_t i = 0; i < count && w; i++) {
        w->backward = w->backward || names[i] == DQ;
    }
    for (int64_t i = 0; i < count && w; i++) {
        if (names[i] == SCALE) {
            w->args = (tn_attention_args){plan->causal, (double)*(const float *)address[i]};
        } else if (names[i] <= DV) {
            bool exchanged = names[i] == K || (names[i] == V && w->backward);
            w->d[names[i]] = attention_operand(&plan->named[names[i]], address[i], exchanged);
        }
    }
    if (w) { w->d[LSE].ndim = 3; }
    return w;
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                         cudnnBackendDescriptor_t pack) {
    typedef bool (*queue_function)(int, void *, bool (*)(void *), void *);
    const bag *p = plan, *v = pack;
    if (p->finalised && record_run(p)) { return CUDNN_STATUS_SUCCESS; }
    const attribute *names = find_attribute(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    int64_t name[BYTES / 8];
    void *address[BYTES / 8];
    queue_function queue;
    *(void **)&queue = dlsym(loaded_emulator(), "tern_emulator_queue");
    conv_work *work = malloc(sizeof(*work));
    if (!work || !p->finalised || !v->finalised || !names || !queue) {
        free(work);
        return CUDNN_STATUS_BAD_PARAM;
    }
    *work = p->work;
    read_values(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, names->count, name, sizeof(*name));
    if (p->attends) {
        free(work);
        read_values(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, names->count, address, 8);
        attention_work *attention = attention_of(p, names->count, name, address);
        runs++;
        return attention && queue(handle->device, handle->stream, run_attention, attention)
                   ? CUDNN_STATUS_SUCCESS
                   : CUDNN_STATUS_BAD_PARAM;
    }
    if (!read_values(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, names->count, address, 8) ||
        !read_values(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1, &work->workspace, 8) ||
        !work->workspace || !place_operand(&work->y, names->count, name, address) ||
        !place_operand(&work->x, names->count, name, address) ||
        !place_operand(&work->w, names->count, name, address) ||
        !place_operand(&work->b, names->count, name, address) ||
        !queue(handle->device, handle->stream, run_work, work)) {
        free(work);
        return CUDNN_STATUS_BAD_PARAM;
    }
    runs++;
    last_engine = p->engine;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                  cudnnBackendDescriptor_t *descriptor) {
    bag *b = calloc(1, sizeof(*b));
    if (b) { b->type = type; }
    *descriptor = b;
    return b ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}

EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count,
                                              const void *values) {
    bag *b = descriptor;
    size_t bytes = (size_t)count * size_of_type(type);
    if (b->finalised || b->attributes == ATTRIBUTES || bytes > BYTES || !values) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    attribute *a = &b->at[b->attributes++];
    a->name = name;
    a->type = type;
    a->count = count;
    memcpy(a->bytes, values, bytes);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    bag *b = descriptor;
    operand tensor;
    bag trial = {0};
    bool right = true;
    if (b->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
        right = find_attribute(b, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) && read_operand(b, &tensor);
    } else if (b->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
        b->graph = read_link(b, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        right = b->graph && make_plan(b->graph, &trial);
    } else if (b->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const bag *config = read_link(b, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        right = config && make_plan(config->graph, b);
        b->engine = config ? config->engine : 0;
        record_line("plan");
        plans++;
    }
    b->finalised = right;
    return right ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

/* Three engines: one that rounds f32, one that adds in the order of arrival, one that does
 * neither. */
static int64_t engine_notes(int engine, cudnnBackendNumericalNote_t *notes) {
    static const cudnnBackendNumericalNote_t note[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                                       CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
    if (engine < 2) { notes[0] = note[engine]; }
    return engine < 2;
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t most,
                                              int64_t *count, void *values) {
    bag *b = descriptor;
    *count = 1;
    if (!b->finalised) { return CUDNN_STATUS_BAD_PARAM; }
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        *count = most < ENGINES ? most : ENGINES;
        for (int i = 0; i < *count; i++) {
            bag *config = ((bag **)values)[i];
            config->graph = b->graph;
            config->engine = i;
            config->finalised = true;
        }
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        (*(bag **)values)->engine = b->engine;
        (*(bag **)values)->finalised = true;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        *count = engine_notes(b->engine, values);
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = WORKSPACE;
    } else {
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- The rest -------------------------------------------------------------------------------- */

EXPORT size_t cudnnGetVersion(void) {
    return CUDNN_VERSION;
}

EXPORT size_t cudnnGetCudartVersion(void) {
    return CUDART_VERSION;
}

EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS ? "success" : "the stand-in refuses";
}

EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
    snprintf(message, size, "%s", "");
}

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    int (*device)(void);
    const char *starts = getenv("FAKE_CUDNN_STARTS");
    if (starts && strcmp(starts, "no") == 0) { return CUDNN_STATUS_NOT_INITIALIZED; }
    *(void **)&device = dlsym(loaded_emulator(), "tern_emulator_device");
    *handle = device ? calloc(1, sizeof(**handle)) : NULL;
    if (!*handle) { return CUDNN_STATUS_NOT_INITIALIZED; }
    (*handle)->device = device();
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
