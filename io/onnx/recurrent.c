/* One layer of a recurrent net in one direction as ONNX nodes (RNN, GRU, LSTM). ONNX has a
 * dimension for directions, and the gates in another order than ours, which is PyTorch's. */
#include "io/onnx/graph.h"

#include "ops/rnn/recurrent.h"

#include <string.h>

/* The positions of ONNX's gates among ours: LSTM i o f c of i f g o, GRU z r h of r z n. */
typedef struct gate_order {
    int gates;
    int64_t place[4];
} gate_order;

static gate_order order_of(const char *type) {
    return strcmp(type, "LSTM") == 0  ? (gate_order){4, {0, 3, 1, 2}}
           : strcmp(type, "GRU") == 0 ? (gate_order){3, {1, 0, 2}}
                                      : (gate_order){1, {0}};
}

/* The rows of a weight or bias, in ONNX's order. */
static tn_tensor *row_places(const gate_order *order, int64_t units) {
    tn_tensor *rows = tn_empty_on(tn_cpu(), TN_DIMS(order->gates * units), TN_I64);
    int64_t *to = tn_data_mut(rows);
    for (int64_t i = 0; i < order->gates * units && !tn_is_inert(rows); i++) {
        to[i] = order->place[i / units] * units + i % units;
    }
    return rows;
}

/* value in ONNX's order of gates; with `rows` 0 there is only one. */
static int in_order(tn__onnx *g, int value, int rows) {
    return rows > 0 && value > 0 ? TN__NODE(g, "Gather", value, rows) : value;
}

/* Both biases concatenated, or 0 if there are none. */
static int both_biases(tn__onnx *g, const tn_op_call *c, int rows) {
    int bias[2], first = c->in[TN__RNN_B_IH] ? TN__RNN_B_IH : TN__RNN_B_HH;
    if (!c->in[first]) { return 0; }
    for (int i = 0; i < 2; i++) {
        bias[i] = c->in[TN__RNN_B_IH + i] ? in_order(g, tn__onnx_in(g, c, TN__RNN_B_IH + i), rows)
                                          : tn__onnx_constant(g, tn_zeros_like(c->in[first]));
    }
    int both = TN__NODE(g, "Concat", bias[0], bias[1]);
    tn__onnx_int(g, "axis", 0);
    return both;
}

/* A first dimension of size 1, for the direction. */
static int with_direction(tn__onnx *g, int value, int axis) {
    return value > 0 ? TN__NODE(g, "Unsqueeze", value, axis) : 0;
}

static int state_input(tn__onnx *g, const tn_op_call *c, int i, int axis) {
    return i < c->inputs ? with_direction(g, tn__onnx_in(g, c, i), axis) : 0;
}

static void direction_attributes(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__onnx_int(g, "hidden_size", tn_size(c->in[TN__RNN_W_HH], 1));
    if (tn__arg_whole(c, "reverse")) { tn__onnx_text(g, "direction", "reverse", false); }
    if (strcmp(type, "GRU") == 0) {
        tn__onnx_int(g, "linear_before_reset", 1); /* the reset gate is where PyTorch's is */
    } else if (strcmp(type, "RNN") == 0 && tn__arg_whole(c, "relu")) {
        tn__onnx_text(g, "activations", "Relu", true);
    }
}

static void put_recurrent(tn__onnx *g, const tn_op_call *c, const char *type) {
    gate_order order = order_of(type);
    int64_t zero = 0, one = 1;
    int axis0 = tn__onnx_wholes(g, &zero, 1), axis1 = tn__onnx_wholes(g, &one, 1), rows = 0;
    if (order.gates > 1) {
        rows = tn__onnx_constant(g, row_places(&order, tn_size(c->in[TN__RNN_W_HH], 1)));
    }
    int x = tn__onnx_in(g, c, TN__RNN_X);
    int w = with_direction(g, in_order(g, tn__onnx_in(g, c, TN__RNN_W_IH), rows), axis0);
    int r = with_direction(g, in_order(g, tn__onnx_in(g, c, TN__RNN_W_HH), rows), axis0);
    int b = with_direction(g, both_biases(g, c, rows), axis0);
    int lengths = tn__onnx_in(g, c, TN__RNN_LENGTHS);
    lengths = lengths > 0 ? tn__onnx_cast(g, lengths, TN_I32) : 0;
    int h0 = state_input(g, c, TN__RNN_H0, axis0), c0 = state_input(g, c, TN__RNN_C0, axis0);
    if (c0 > 0 && h0 == 0) {
        h0 = with_direction(g, tn__onnx_constant(g, tn_zeros_like(c->in[TN__RNN_C0])), axis0);
    }
    int results[3] = {TN__NODE(g, type, x, w, r, b, lengths, h0, c0)};
    for (int i = 1; i < tn_op_results(c->op); i++) {
        results[i] = tn__onnx_output(g);
    }
    direction_attributes(g, c, type);
    for (int i = 0; i < tn_op_results(c->op); i++) {
        int axis = i == 0 ? axis1 : axis0;
        tn__onnx_give(g, c, i, TN__NODE(g, "Squeeze", results[i], axis));
    }
}

/* Runtimes do not take empty sequences. */
const tn__onnx_rule tn__onnx_recurrent[] = {
    {"rnn", put_recurrent, "RNN", tn__onnx_has_elements},
    {"gru", put_recurrent, "GRU", tn__onnx_has_elements},
    {"lstm", put_recurrent, "LSTM", tn__onnx_has_elements},
    {0},
};
