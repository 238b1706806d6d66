/* Values and nodes of a graph (graph.h). Field numbers are those of onnx.proto. */
#include "io/onnx/graph.h"

#include "core/error.h"
#include "core/memory.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPH_NODE = 1 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_TYPE = 4, NODE_ATTRIBUTE = 5 };
enum {
    ATTRIBUTE_NAME = 1,
    ATTRIBUTE_FLOAT = 2,
    ATTRIBUTE_INT = 3,
    ATTRIBUTE_TEXT = 4,
    ATTRIBUTE_INTS = 8,
    ATTRIBUTE_TEXTS = 9,
    ATTRIBUTE_TYPE = 20
};
enum { TYPE_FLOAT = 1, TYPE_INT = 2, TYPE_TEXT = 3, TYPE_INTS = 7, TYPE_TEXTS = 8 };

/* ---- Values ---------------------------------------------------------------------------------- */

/* "/fc1/linear_12": the modules whose forward runs, the operation, a unique number. */
static char *make_name(const tn__onnx *g) {
    const char *parts[TN__DEEPEST];
    int n = 0;
    for (tn__frame *f = tn__self.frames; f && n < TN__DEEPEST; f = f->up) {
        if (f->up && f->name && *f->name) { /* the outermost is the model's kind */
            parts[n++] = f->name;
        }
    }
    tn__buffer name = {.operation = "onnx_export"};
    tn__buffer_text(&name, "/");
    while (n > 0) {
        tn__buffer_format(&name, "%s/", parts[--n]);
    }
    tn__buffer_format(&name, "%s_%d", g->operation, g->count + 1);
    return tn__buffer_take(&name);
}

int tn__onnx_value_add(tn__onnx *g, tn__onnx_kind kind, tn_tensor *tensor, const char *name) {
    if (tn__pending() ||
        !tn__grow(&g->values, g->count + 1, &g->capacity, sizeof(*g->values), "onnx_export")) {
        return 0;
    }
    char *own = name ? tn__strdup(name) : make_name(g);
    if (!own) {
        tn__raise(TN_ENOMEM, "onnx_export", "no memory for a name");
        return 0;
    }
    g->values[g->count++] = (tn__onnx_value){.kind = kind,
                                             .name = own,
                                             .tensor = tensor ? tn_keep(tensor) : NULL,
                                             .version = tensor ? tensor->version->value : 0};
    return g->count;
}

/* Whether both view the same elements in the same way, as after tn_detach. */
static bool same_view(const tn_tensor *a, const tn_tensor *b) {
    if (a->storage != b->storage || a->offset != b->offset || a->dtype != b->dtype ||
        !tn_dims_equal(a->dims, b->dims)) {
        return false;
    }
    for (int i = 0; i < a->dims.ndim; i++) {
        if (a->stride[i] != b->stride[i] && a->dims.size[i] > 1) { return false; }
    }
    return true;
}

int tn__onnx_known(const tn__onnx *g, const tn_tensor *t) {
    for (int i = g->count; t && i > 0; i--) {
        const tn_tensor *known = g->values[i - 1].tensor;
        if (known && (known == t || same_view(known, t))) { return i; }
    }
    return 0;
}

bool tn__onnx_hidden(const tn__onnx *g, const tn_tensor *t) {
    if (tn__onnx_known(g, t) || tn_count(t) == 0) { return false; }
    for (int i = 0; i < g->count; i++) {
        const tn__onnx_value *v = &g->values[i];
        bool depends = v->kind == TN__ONNX_INPUT || v->kind == TN__ONNX_RESULT;
        if (depends && v->tensor && v->tensor->storage == t->storage) { return true; }
    }
    return false;
}

int tn__onnx_in(tn__onnx *g, const tn_op_call *c, int i) {
    tn_tensor *t = i < c->inputs ? c->in[i] : NULL;
    int value = tn__onnx_known(g, t);
    if (!t || tn__pending()) { return 0; }
    if (tn__onnx_hidden(g, t)) {
        tn_op_fail(c, TN_EUNSUPPORTED, "%s %s is a view that no operation made",
                   tn_op_input_name(c->op, i).text, tn_shape_text(t));
        return 0;
    }
    if (value == 0) { return tn__onnx_constant(g, t); }
    if (t->version->value != g->values[value - 1].version) {
        tn_op_fail(c, TN_EUNSUPPORTED, "%s %s was changed in place, which ONNX cannot express",
                   tn_op_input_name(c->op, i).text, tn_shape_text(t));
        return 0;
    }
    g->values[value - 1].used = true;
    return value;
}

void tn__onnx_give(tn__onnx *g, const tn_op_call *c, int i, int value) {
    if (value > 0 && !tn__pending()) {
        tn__onnx_value *v = &g->values[value - 1];
        v->tensor = tn_keep(c->out[i]);
        v->version = c->out[i]->version->value;
    }
}

int tn__onnx_constant(tn__onnx *g, tn_tensor *t) {
    int value = tn_is_inert(t) ? 0 : tn__onnx_value_add(g, TN__ONNX_CONSTANT, t, NULL);
    if (value > 0) { g->values[value - 1].used = true; }
    return value;
}

int tn__onnx_number(tn__onnx *g, double number, tn_dtype dtype) {
    return tn__onnx_constant(g, tn_scalar(number, dtype));
}

int tn__onnx_wholes(tn__onnx *g, const int64_t *numbers, int n) {
    return tn__onnx_constant(g, tn_from_data(numbers, TN_DIMS(n), TN_I64));
}

int tn__onnx_dims(tn__onnx *g, tn_dims dims) {
    return tn__onnx_wholes(g, dims.size, dims.ndim);
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

void tn__onnx_close(tn__onnx *g) {
    if (g->open) {
        tn__message_put(&g->nodes, GRAPH_NODE, &g->node);
        g->open = false;
    }
}

/* Adds an output to the open node. name: as in tn__onnx_value_add. */
static int add_output(tn__onnx *g, const char *name) {
    int value = tn__onnx_value_add(g, TN__ONNX_RESULT, NULL, name);
    if (value > 0) { tn__message_text(&g->node, NODE_OUTPUT, g->values[value - 1].name); }
    return value;
}

int tn__onnx_output(tn__onnx *g) {
    return add_output(g, NULL);
}

/* name: of the output; then the node has none. */
static int add_node(tn__onnx *g, const char *type, const int *inputs, int n, const char *name) {
    tn__onnx_close(g);
    g->open = true;
    while (n > 0 && inputs[n - 1] == 0) {
        n--;
    }
    for (int i = 0; i < n; i++) {
        const char *input = inputs[i] > 0 && !tn__pending() ? g->values[inputs[i] - 1].name : "";
        tn__message_text(&g->node, NODE_INPUT, input);
    }
    int value = add_output(g, name);
    if (value > 0 && !name) { tn__message_text(&g->node, NODE_NAME, g->values[value - 1].name); }
    tn__message_text(&g->node, NODE_TYPE, type);
    return value;
}

int tn__onnx_node(tn__onnx *g, const char *type, const int *inputs, int n) {
    return add_node(g, type, inputs, n, NULL);
}

int tn__onnx_named(tn__onnx *g, int value, const char *name) {
    if (tn__pending()) { return 0; }
    g->values[value - 1].used = true;
    return add_node(g, "Identity", &value, 1, name);
}

static void put_attribute(tn__onnx *g, const char *name, int type, tn__buffer *value) {
    tn__message_text(value, ATTRIBUTE_NAME, name);
    tn__message_whole(value, ATTRIBUTE_TYPE, (uint64_t)type);
    tn__message_put(&g->node, NODE_ATTRIBUTE, value);
}

void tn__onnx_int(tn__onnx *g, const char *name, int64_t value) {
    tn__buffer m = {0};
    tn__message_whole(&m, ATTRIBUTE_INT, (uint64_t)value);
    put_attribute(g, name, TYPE_INT, &m);
}

void tn__onnx_float(tn__onnx *g, const char *name, double value) {
    tn__buffer m = {0};
    tn__message_float(&m, ATTRIBUTE_FLOAT, (float)value);
    put_attribute(g, name, TYPE_FLOAT, &m);
}

void tn__onnx_text(tn__onnx *g, const char *name, const char *value, bool list) {
    tn__buffer m = {0};
    tn__message_text(&m, list ? ATTRIBUTE_TEXTS : ATTRIBUTE_TEXT, value);
    put_attribute(g, name, list ? TYPE_TEXTS : TYPE_TEXT, &m);
}

void tn__onnx_ints(tn__onnx *g, const char *name, const int64_t *values, int n) {
    tn__buffer m = {0};
    for (int i = 0; i < n; i++) {
        tn__message_whole(&m, ATTRIBUTE_INTS, (uint64_t)values[i]);
    }
    put_attribute(g, name, TYPE_INTS, &m);
}

/* ---- What many operations need --------------------------------------------------------------- */

int tn__onnx_type(tn_dtype dtype) {
    static const int types[TN_DTYPES] = {
        [TN_F32] = 1, [TN_F64] = 11, [TN_BF16] = 16, [TN_F16] = 10, [TN_I64] = 7,
        [TN_I32] = 6, [TN_U8] = 2,   [TN_BOOL] = 9,  [TN_I8] = 3};
    return types[dtype];
}

int tn__onnx_cast(tn__onnx *g, int x, tn_dtype dtype) {
    int y = TN__NODE(g, "Cast", x);
    tn__onnx_int(g, "to", tn__onnx_type(dtype));
    return y;
}

int tn__onnx_reshape(tn__onnx *g, int x, tn_dims dims) {
    int shape = tn__onnx_dims(g, dims), y = TN__NODE(g, "Reshape", x, shape);
    tn__onnx_int(g, "allowzero", 1); /* a 0 means size 0 */
    return y;
}

int64_t tn__onnx_dim(const tn_op_call *c) {
    int64_t dim = tn__arg_whole(c, "dim");
    return dim < 0 ? dim + tn_ndim(c->in[0]) : dim;
}

bool tn__onnx_has_dims(const tn_op_call *c) {
    return tn_ndim(c->in[0]) > 0;
}

bool tn__onnx_has_elements(const tn_op_call *c) {
    return tn_count(c->in[0]) > 0;
}

void tn__onnx_unary(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__onnx_give(g, c, 0, TN__NODE(g, type, tn__onnx_in(g, c, 0)));
}

void tn__onnx_binary(tn__onnx *g, const tn_op_call *c, const char *type) {
    int a = tn__onnx_in(g, c, 0), b = tn__onnx_in(g, c, 1);
    tn__onnx_give(g, c, 0, TN__NODE(g, type, a, b));
}

void tn__onnx_along(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), y = TN__NODE(g, type, x, tn__onnx_in(g, c, 1));
    tn__onnx_int(g, "axis", tn__onnx_dim(c));
    tn__onnx_give(g, c, 0, y);
}

void tn__onnx_finish(tn__onnx *g) {
    for (int i = 0; i < g->count; i++) {
        tn_release(g->values[i].tensor);
        free(g->values[i].name);
    }
    free(g->values);
    tn__buffer_free(&g->node);
    tn__buffer_free(&g->nodes);
}
