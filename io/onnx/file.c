/* A graph as a file (onnx.proto): a model, which holds the graph, which holds the initialisers.
 * Elements go straight from the tensors to the file, so the lengths before them are computed
 * first. */
#include "io/onnx/graph.h"

#include "core/file.h"
#include "tensor/tensor.h"
#include "tern/ops.h"

#include <stdint.h>

enum { MODEL_IR = 1, MODEL_PRODUCER = 2, MODEL_GRAPH = 7, MODEL_OPSETS = 8, OPSET_VERSION = 2 };
enum { GRAPH_NAME = 2, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW = 9 };
enum { INFO_NAME = 1, INFO_TYPE = 2, TYPE_TENSOR = 1, TENSOR_ELEMENT = 1, TENSOR_SHAPE = 2 };
enum { SHAPE_DIM = 1, DIM_VALUE = 1, DIM_NAME = 2 };

static bool is_initializer(const tn__onnx_value *v) {
    return v->used && (v->kind == TN__ONNX_PARAM || v->kind == TN__ONNX_CONSTANT);
}

/* An initialiser as a field of the graph, without its elements, which take `bytes`. */
static tn__buffer initializer_head(const tn__onnx_value *v, size_t *bytes) {
    tn__buffer tensor = {0}, head = {0};
    tn_dims dims = tn_shape(v->tensor);
    *bytes = (size_t)tn_count(v->tensor) * tn_dtype_size(tn_dtype_of(v->tensor));
    for (int i = 0; i < dims.ndim; i++) {
        tn__message_whole(&tensor, TENSOR_DIMS, (uint64_t)dims.size[i]);
    }
    tn__message_whole(&tensor, TENSOR_TYPE, (uint64_t)tn__onnx_type(tn_dtype_of(v->tensor)));
    tn__message_text(&tensor, TENSOR_NAME, v->name);
    tn__message_ahead(&tensor, TENSOR_RAW, *bytes);
    tn__message_ahead(&head, GRAPH_INITIALIZER, tensor.bytes + *bytes);
    tn__message_append(&head, &tensor);
    return head;
}

/* Name, dtype and shape of an input or output, as a field of the graph. */
static void put_info(tn__buffer *graph, int field, const tn__onnx_value *v) {
    tn__buffer info = {0}, type = {0}, tensor = {0}, shape = {0};
    tn_dims dims = tn_shape(v->tensor);
    for (int i = 0; i < dims.ndim; i++) {
        tn__buffer dim = {0};
        if (v->batch >> i & 1) {
            tn__message_text(&dim, DIM_NAME, "batch");
        } else if (!(v->any_size >> i & 1)) {
            tn__message_whole(&dim, DIM_VALUE, (uint64_t)dims.size[i]);
        }
        tn__message_put(&shape, SHAPE_DIM, &dim);
    }
    tn__message_whole(&tensor, TENSOR_ELEMENT, (uint64_t)tn__onnx_type(tn_dtype_of(v->tensor)));
    tn__message_put(&tensor, TENSOR_SHAPE, &shape);
    tn__message_put(&type, TYPE_TENSOR, &tensor);
    tn__message_text(&info, INFO_NAME, v->name);
    tn__message_put(&info, INFO_TYPE, &type);
    tn__message_put(graph, field, &info);
}

/* Whether initialisers still hold what the forward used, since their present elements are written.
 * False after raising. */
static bool check_unchanged(const tn__onnx *g) {
    for (int i = 0; i < g->count; i++) {
        const tn__onnx_value *v = &g->values[i];
        if (is_initializer(v) && v->tensor->version->value != v->version) {
            return tn__fail(
                TN_EUNSUPPORTED, "onnx_export",
                "%s %s was changed in place after it was used, which ONNX cannot express", v->name,
                tn_shape_text(v->tensor));
        }
    }
    return true;
}

/* The graph without its initialisers, whose bytes are counted. */
static tn__buffer whole_graph(tn__onnx *g, size_t *elsewhere) {
    tn__buffer graph = {0};
    tn__onnx_close(g);
    tn__message_text(&graph, GRAPH_NAME, "forward");
    for (int i = 0; i < g->count; i++) {
        const tn__onnx_value *v = &g->values[i];
        if (v->kind == TN__ONNX_INPUT) {
            put_info(&graph, GRAPH_INPUT, v);
        } else if (is_initializer(v)) {
            size_t bytes;
            tn__buffer head = initializer_head(v, &bytes);
            *elsewhere += head.bytes + bytes;
            graph.failed = graph.failed || head.failed;
            tn__buffer_free(&head);
        }
    }
    for (int i = 0; i < g->output_count; i++) {
        put_info(&graph, GRAPH_OUTPUT, &g->values[g->outputs[i] - 1]);
    }
    tn__message_append(&graph, &g->nodes);
    return graph;
}

static tn__buffer model_head(size_t graph_bytes) {
    tn__buffer model = {0}, opset = {0};
    tn__message_whole(&model, MODEL_IR, TN__ONNX_IR);
    tn__message_text(&model, MODEL_PRODUCER, "tern");
    tn__message_whole(&opset, OPSET_VERSION, TN__ONNX_OPSET);
    tn__message_put(&model, MODEL_OPSETS, &opset);
    tn__message_ahead(&model, MODEL_GRAPH, graph_bytes);
    return model;
}

static bool put_initializer(tn__file *f, const tn__onnx_value *v) {
    TN_SCOPE;
    TN_NO_GRAD;
    size_t bytes;
    tn_tensor *here = tn_contiguous(tn_to(tn_detach(v->tensor), tn_cpu()));
    tn__buffer head = initializer_head(v, &bytes);
    bool ok = !head.failed && !tn_is_inert(here);
    if (ok) {
        tn__file_put(f, head.at, head.bytes);
        tn__file_put(f, tn_data(here), bytes);
    } else {
        tn__raise(TN_ENOMEM, "onnx_export", "no memory to write %s", v->name);
    }
    tn__buffer_free(&head);
    return ok;
}

static tn_status write_parts(const tn__onnx *g, const tn__buffer *model, const tn__buffer *graph,
                             const char *path) {
    tn__file f;
    if (!tn__file_begin(&f, path, "onnx_export")) { return tn_error(); }
    tn__file_put(&f, model->at, model->bytes);
    tn__file_put(&f, graph->at, graph->bytes);
    for (int i = 0; i < g->count; i++) {
        if (is_initializer(&g->values[i]) && !put_initializer(&f, &g->values[i])) {
            tn__file_abandon(&f);
            return tn_error();
        }
    }
    return tn__file_commit(&f);
}

tn_status tn__onnx_save(tn__onnx *g, const char *path) {
    size_t elsewhere = 0;
    if (tn__pending() || !check_unchanged(g)) { return tn_error(); }
    tn__buffer graph = whole_graph(g, &elsewhere);
    tn__buffer model = model_head(graph.bytes + elsewhere);
    if (graph.failed || model.failed) {
        tn__raise(TN_ENOMEM, "onnx_export", "no memory for the graph");
    } else if (model.bytes + graph.bytes + elsewhere > INT32_MAX) {
        tn__raise(TN_EUNSUPPORTED, "onnx_export",
                  "%s: %zu bytes (an ONNX file has fewer than 2 GiB)", path,
                  model.bytes + graph.bytes + elsewhere);
    } else {
        write_parts(g, &model, &graph, path);
    }
    tn__buffer_free(&model);
    tn__buffer_free(&graph);
    return tn_error();
}
