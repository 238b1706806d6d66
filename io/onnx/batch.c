/* A graph for batches of any size, from traces of the same forward with three batch sizes.
 *
 * Their nodes must be the same, and their constants too, except lists of integers, mostly sizes,
 * that grow by the same amount per row: such a list is computed in the file, from the size of an
 * input: fixed + batch each. If that is right for three sizes it is for any, unless the forward
 * branches on the size. Any other difference is an error.
 */
#include "io/onnx/graph.h"

#include "core/error.h"
#include "tern/ops.h"

#include <string.h>

static bool refuse_value(const tn__onnx_value *v, const char *what) {
    return tn__fail(TN_EUNSUPPORTED, "onnx_export",
                    "%s depends on the batch: %s (for one batch size, export without batch_inputs)",
                    v->name, what);
}

/* Whether the traces have the same operations in the same order. */
static bool same_nodes(tn__onnx *a, tn__onnx *b) {
    tn__onnx_close(a);
    tn__onnx_close(b);
    if (a->nodes.failed || b->nodes.failed) {
        return tn__fail(TN_ENOMEM, "onnx_export", "no memory for the graph");
    }
    if (a->count == b->count && a->nodes.bytes == b->nodes.bytes &&
        memcmp(a->nodes.at, b->nodes.at, a->nodes.bytes) == 0) {
        return true;
    }
    return tn__fail(TN_EUNSUPPORTED, "onnx_export",
                    "the operations, or their arguments, depend on the size of the batch");
}

/* Marks the dimensions of an input or output whose sizes differ. */
static void mark_sizes(tn__onnx_value *v, const tn__onnx_value *larger, int64_t batch) {
    for (int i = 0; i < tn_ndim(v->tensor) && i < tn_ndim(larger->tensor); i++) {
        int64_t size = tn_size(v->tensor, i), other = tn_size(larger->tensor, i);
        if (size == batch && other == batch + 1) {
            v->batch |= 1u << i;
        } else if (size != other) {
            v->any_size |= 1u << i;
        }
    }
}

/* Adds nodes that compute the list fixed + batch each. */
static void compute_list(tn__onnx *g, int value, int rows, tn_tensor *fixed, tn_tensor *each) {
    int product = TN__NODE(g, "Mul", rows, tn__onnx_constant(g, each));
    int sum = TN__NODE(g, "Add", product, tn__onnx_constant(g, fixed));
    if (sum > 0) {
        tn__onnx_named(g, sum, g->values[value - 1].name);
        g->values[value - 1].kind = TN__ONNX_RESULT;
    }
}

/* Compares constant `value` of the three traces. `rows`: the batch size, as a value. */
static bool vary_constant(tn__onnx *g, const tn__onnx *larger, const tn__onnx *largest, int value,
                          int rows, int64_t batch) {
    const tn__onnx_value *v = &g->values[value - 1];
    tn_tensor *a = v->tensor, *b = larger->values[value - 1].tensor,
              *c = largest->values[value - 1].tensor;
    if (tn_dtype_of(a) != tn_dtype_of(b) || !tn_dims_equal(tn_shape(a), tn_shape(b)) ||
        !tn_dims_equal(tn_shape(a), tn_shape(c))) {
        return refuse_value(v, "the shape of a constant");
    }
    if (tn_equal(a, b) && tn_equal(a, c)) { return !tn__pending(); }
    if (tn_dtype_of(a) != TN_I64 || tn_ndim(a) != 1) {
        return refuse_value(v, "the values of a constant");
    }
    tn_tensor *each = tn_sub(b, a);
    if (!tn_equal(tn_sub(c, b), each)) {
        return refuse_value(v, "sizes that do not grow by the same amount");
    }
    compute_list(g, value, rows, tn_sub(a, tn_mul_scalar(each, (double)batch)), each);
    return !tn__pending();
}

/* The batch size of the first input that has one, a list of one; its node comes first. */
static int batch_size(tn__onnx *g) {
    for (int i = 0; i < g->count; i++) {
        if (g->values[i].kind == TN__ONNX_INPUT && g->values[i].batch & 1) {
            int rows = TN__NODE(g, "Shape", i + 1);
            tn__onnx_int(g, "start", 0);
            tn__onnx_int(g, "end", 1);
            return rows;
        }
    }
    return 0;
}

bool tn__onnx_vary(tn__onnx *g, tn__onnx *larger, tn__onnx *largest, int64_t batch) {
    int count = g->count;
    if (!same_nodes(g, larger) || !same_nodes(g, largest)) { return false; }
    for (int i = 0; i < count; i++) {
        if (g->values[i].kind == TN__ONNX_INPUT) {
            mark_sizes(&g->values[i], &larger->values[i], batch);
        }
    }
    for (int i = 0; i < g->output_count; i++) {
        mark_sizes(&g->values[g->outputs[i] - 1], &larger->values[larger->outputs[i] - 1], batch);
    }
    tn__buffer nodes = g->nodes; /* after those that are made here */
    g->nodes = (tn__buffer){0};
    g->operation = "batch";
    int rows = batch_size(g);
    bool ok = rows > 0;
    for (int i = 0; i < count && ok; i++) {
        ok = g->values[i].kind != TN__ONNX_CONSTANT ||
             vary_constant(g, larger, largest, i + 1, rows, batch);
    }
    tn__onnx_close(g);
    tn__message_append(&g->nodes, &nodes);
    return ok;
}
