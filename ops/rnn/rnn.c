/* rnn: y_t = h_t of the simple recurrent net (Elman 1990, Cognitive Science 14)
 *
 *     h' = tanh(p + a), or relu(p + a)
 *
 *     Shapes, p, a, lengths and directions: recurrent.h. f32 f64 bf16 f16
 *     Gradients: backends/ref/recurrent.c
 */
#include "ops/rnn/recurrent.h"

static tn_cell rnn_cell_of(const void *args) {
    return ((const tn__rnn_args *)args)->relu ? TN_CELL_RELU : TN_CELL_TANH;
}

static bool rnn_shape(tn_op_call *c) {
    return tn__rnn_shape(c, rnn_cell_of(c->args));
}

static tn_status rnn_forward(const tn_op_call *c) {
    return tn__rnn_forward(c, rnn_cell_of(c->args));
}

static tn_status rnn_back(const tn_op_back *b) {
    return tn__rnn_backward(b, rnn_cell_of(b->args));
}

static tn__rnn_state tanh_step(tn_tensor *p, tn_tensor *a, tn__rnn_state before) {
    return (tn__rnn_state){tn_tanh(tn_add(p, a)), NULL};
}

static tn__rnn_state relu_step(tn_tensor *p, tn_tensor *a, tn__rnn_state before) {
    return (tn__rnn_state){tn_relu(tn_add(p, a)), NULL};
}

static tn_tensor *rnn_compose(tn_op_call *c) {
    bool bends = rnn_cell_of(c->args) == TN_CELL_TANH;
    return tn__rnn_compose(c, bends ? tanh_step : relu_step, false);
}

static void rnn_samples(tn_op_samples *s) {
    tn__rnn_samples(s, TN_CELL_TANH);
    tn__rnn_samples(s, TN_CELL_RELU);
}

const tn_op tn__op_rnn = {
    .name = "rnn",
    .args_size = sizeof(tn__rnn_args),
    .fields = {TN_FIELD(tn__rnn_args, reverse), TN_FIELD(tn__rnn_args, relu)},
    .results = 2,
    .inputs = {TN__RNN_NAMES},
    .optional = TN__RNN_OPTIONAL,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(2) | TN_SAVES_OUTPUT(3),
    .shape = rnn_shape,
    .forward = rnn_forward,
    .host = {rnn_forward, rnn_back},
    .compose = rnn_compose,
    .backward_kernel = rnn_back,
    .x_rows = {TN_ROWS(1)},
    .widens = TN__RNN_WEIGHTS,
    .adds = TN__RNN_WEIGHTS,
    .flags = TN_OP_WIDE,
    .add_samples = rnn_samples,
    .work = tn__rnn_work,
};

tn_tensor *tn_rnn_op(tn_tensor *x, tn_tensor *h0, tn_rnn_weights w, tn_tensor *lengths,
                     bool reverse, bool relu, tn_tensor **hn) {
    tn_tensor *in[] = {x, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh, lengths, h0};
    tn_tensor *results[TN_OP_OUTPUTS];
    tn__rnn_args args = {.reverse = reverse, .relu = relu};
    tn__rnn_apply(&tn__op_rnn, &args, in, TN__RNN_H0 + 1, results);
    if (hn) { *hn = results[1]; }
    return results[0];
}
