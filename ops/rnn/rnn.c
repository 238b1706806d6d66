/* rnn: y_t = h_t of the simple recurrent net (Elman 1990, Cognitive Science 14)
 *
 *     h' = tanh(p + a), or relu(p + a)
 *
 *     Shapes, p, a, lengths and directions: recurrent.h. f32 f64 bf16 f16
 *     Gradients: backends/ref/recurrent.c
 */
#include "ops/rnn/recurrent.h"

static tn__rnn_state tanh_step(tn_tensor *p, tn_tensor *a, tn__rnn_state before) {
    return (tn__rnn_state){tn_tanh(tn_add(p, a)), NULL};
}

static tn__rnn_state relu_step(tn_tensor *p, tn_tensor *a, tn__rnn_state before) {
    return (tn__rnn_state){tn_relu(tn_add(p, a)), NULL};
}

static tn_tensor *rnn_compose(tn_op_call *c) {
    bool bends = ((const tn__rnn_args *)c->args)->cell == TN_CELL_TANH;
    return tn__rnn_compose(c, bends ? tanh_step : relu_step);
}

/* Of TN_CELL_TANH and TN_CELL_RELU. */
static const char *const relu_names[] = {"False", "True", NULL};

/* Each combination of biases, lengths and an initial state; both directions; one time, one row, one
 * unit, no rows, and more units and rows than a kernel's tile. */
/* clang-format off */
#define UNIFORM "-1:1, -0.7:0.7, -0.7:0.7, -0.5:0.5, -0.5:0.5, "
#define SAMPLES(once, forward, reverse) \
    "{" once UNIFORM "whole 1:4, -1:1} [3, 2, 3] [2, 3] [2, 2] [2] [2] - [2, 2]" forward "; " \
    "[3, 2, 2] [2, 2] [2, 2] [2] [2] [2] [2, 2]" reverse "; " \
    "{" once UNIFORM "whole 1:5, -1:1} [4, 3, 2] [2, 2] [2, 2] - - [3] -" forward "; " \
    "[2, 2, 2] [3, 2] [3, 3] [3] - - -" reverse "; " \
    "[1, 1, 1] [1, 1] [1, 1] - [1] - [1, 1]" forward "; " \
    "{" once UNIFORM "whole 1:4, -1:1} [3, 0, 2] [2, 2] [2, 2] [2] [2] [0] [0, 2]" forward "; " \
    "[3, 14, 5] [33, 5] [33, 33] [33] [33] [14] [14, 33]" reverse
/* clang-format on */

const tn_op tn__op_rnn = {
    TN__RNN_OP,
    .name = "rnn",
    .fields = {TN_FIELD(tn__rnn_args, reverse),
               TN_FIELD_AS("relu", tn__rnn_args, cell, .names = relu_names)},
    .results = 2,
    .inputs = {TN__RNN_NAMES},
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(2) | TN_SAVES_OUTPUT(3),
    .compose = rnn_compose,
    .samples = SAMPLES("", "", " reverse=True") "; " SAMPLES("once ", " relu=True",
                                                             " reverse=True, relu=True"),
};

tn_tensor *tn_rnn_op(tn_tensor *x, tn_tensor *h0, tn_rnn_weights w, tn_tensor *lengths,
                     bool reverse, bool relu, tn_tensor **hn) {
    tn__rnn_args args = {relu ? TN_CELL_RELU : TN_CELL_TANH, reverse};
    return tn__rnn_apply(&tn__op_rnn, args, x, h0, NULL, w, lengths, hn, NULL);
}
