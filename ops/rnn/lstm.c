/* lstm: y_t = h_t of long short-term memory (Hochreiter and Schmidhuber 1997, Neural Computation
 * 9(8); with forget gates: Gers, Schmidhuber, Cummins 2000)
 *
 *     i = sigmoid(p0 + a0)    f = sigmoid(p1 + a1)    g = tanh(p2 + a2)    o = sigmoid(p3 + a3)
 *     c' = f c + i g          h' = o tanh(c')
 *
 *     Shapes, p, a, lengths and directions: recurrent.h. f32 f64 bf16 f16
 *     Gradients: backends/ref/recurrent.c
 */
#include "ops/rnn/recurrent.h"

static bool lstm_shape(tn_op_call *c) {
    return tn__rnn_shape(c, TN_CELL_LSTM);
}

static tn_status lstm_forward(const tn_op_call *c) {
    return tn__rnn_forward(c, TN_CELL_LSTM);
}

static tn_status lstm_back(const tn_op_back *b) {
    return tn__rnn_backward(b, TN_CELL_LSTM);
}

static tn__rnn_state lstm_step(tn_tensor *p, tn_tensor *a, tn__rnn_state before) {
    tn_tensor *sum = tn_add(p, a), *i = tn_sigmoid(tn__rnn_gate(sum, 0, 4)),
              *f = tn_sigmoid(tn__rnn_gate(sum, 1, 4)), *g = tn_tanh(tn__rnn_gate(sum, 2, 4)),
              *o = tn_sigmoid(tn__rnn_gate(sum, 3, 4)),
              *c = tn_add(tn_mul(f, before.c), tn_mul(i, g));
    return (tn__rnn_state){tn_mul(o, tn_tanh(c)), c};
}

static tn_tensor *lstm_compose(tn_op_call *c) {
    return tn__rnn_compose(c, lstm_step, true);
}

static void lstm_samples(tn_op_samples *s) {
    tn__rnn_samples(s, TN_CELL_LSTM);
}

const tn_op tn__op_lstm = {
    .name = "lstm",
    .args_size = sizeof(tn__rnn_args),
    .fields = {TN_FIELD(tn__rnn_args, reverse)},
    .results = 3,
    .inputs = {TN__RNN_NAMES, "c0"},
    .optional = TN__RNN_OPTIONAL,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(3) | TN_SAVES_OUTPUT(4) | TN_SAVES_OUTPUT(5),
    .shape = lstm_shape,
    .forward = lstm_forward,
    .host = {lstm_forward, lstm_back},
    .compose = lstm_compose,
    .backward_kernel = lstm_back,
    .x_rows = {TN_ROWS(1)},
    .widens = TN__RNN_WEIGHTS,
    .adds = TN__RNN_WEIGHTS,
    .flags = TN_OP_WIDE,
    .add_samples = lstm_samples,
    .work = tn__rnn_work,
};

tn_tensor *tn_lstm_op(tn_tensor *x, tn_tensor *h0, tn_tensor *c0, tn_rnn_weights w,
                      tn_tensor *lengths, bool reverse, tn_tensor **hn, tn_tensor **cn) {
    tn_tensor *in[] = {x, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh, lengths, h0, c0};
    tn_tensor *results[TN_OP_OUTPUTS];
    tn__rnn_apply(&tn__op_lstm, &(tn__rnn_args){.reverse = reverse}, in, TN__RNN_C0 + 1, results);
    if (hn) { *hn = results[1]; }
    if (cn) { *cn = results[2]; }
    return results[0];
}
