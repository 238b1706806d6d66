/* Products, norms, softmax and losses as ONNX nodes. */
#include "io/onnx/graph.h"

#include "tern/ops.h"

/* A vector becomes a matrix of one row or column: onnxruntime, when it fuses a transposition with
 * the product, transposes wrongly next to a vector. */
static void put_matmul(tn__onnx *g, const tn_op_call *c, const char *type) {
    int a = tn__onnx_in(g, c, 0), b = tn__onnx_in(g, c, 1);
    bool row = tn_ndim(c->in[0]) == 1, column = tn_ndim(c->in[1]) == 1;
    int64_t new_dim = row ? 0 : 1, gone = row ? -2 : -1;
    if (row == column) {
        tn__onnx_give(g, c, 0, TN__NODE(g, type, a, b));
        return;
    }
    int matrix = TN__NODE(g, "Unsqueeze", row ? a : b, tn__onnx_wholes(g, &new_dim, 1));
    int y = TN__NODE(g, type, row ? matrix : a, row ? b : matrix);
    tn__onnx_give(g, c, 0, TN__NODE(g, "Squeeze", y, tn__onnx_wholes(g, &gone, 1)));
}

/* x weight^T + bias: one node for matrices, else the weight is transposed first. */
static void put_linear(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), weight = tn__onnx_in(g, c, 1), bias = tn__onnx_in(g, c, 2), y;
    if (tn_ndim(c->in[0]) == 2) {
        y = TN__NODE(g, type, x, weight, bias);
        tn__onnx_int(g, "transB", 1);
    } else {
        y = TN__NODE(g, "MatMul", x, TN__NODE(g, "Transpose", weight));
        y = bias > 0 ? TN__NODE(g, "Add", y, bias) : y;
    }
    tn__onnx_give(g, c, 0, y);
}

/* Input i, or n times a number where it is absent. */
static int input_or(tn__onnx *g, const tn_op_call *c, int i, int64_t n, double number) {
    int value = tn__onnx_in(g, c, i);
    return value > 0 ? value
                     : tn__onnx_constant(g, tn_full(TN_DIMS(n), number, tn_dtype_of(c->in[0])));
}

static void put_layer_norm(tn__onnx *g, const tn_op_call *c, const char *type) {
    int64_t width = tn_size(c->in[0], -1);
    int x = tn__onnx_in(g, c, 0), weight = input_or(g, c, 1, width, 1.0);
    int y = TN__NODE(g, type, x, weight, tn__onnx_in(g, c, 2));
    tn__onnx_float(g, "epsilon", tn__arg_real(c, "eps"));
    tn__onnx_give(g, c, 0, y);
}

static void put_batch_norm(tn__onnx *g, const tn_op_call *c, const char *type) {
    int64_t channels = tn_size(c->in[0], 1);
    int x = tn__onnx_in(g, c, 0), weight = input_or(g, c, 1, channels, 1.0),
        bias = input_or(g, c, 2, channels, 0.0), mean = tn__onnx_in(g, c, 3),
        var = tn__onnx_in(g, c, 4);
    int y = TN__NODE(g, type, x, weight, bias, mean, var);
    tn__onnx_float(g, "epsilon", tn__arg_real(c, "eps"));
    tn__onnx_give(g, c, 0, y);
}

const tn__onnx_rule tn__onnx_nn[] = {
    {"matmul", put_matmul, "MatMul", NULL},
    {"linear", put_linear, "Gemm", NULL},
    {"softmax", tn__onnx_along, "Softmax", tn__onnx_has_dims},
    {"log_softmax", tn__onnx_along, "LogSoftmax", tn__onnx_has_dims},
    {"layer_norm", put_layer_norm, "LayerNormalization", NULL},
    {"batch_norm_given", put_batch_norm, "BatchNormalization", NULL},
    {0},
};
