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

static tn__rnn_state lstm_step(tn_tensor *p, tn_tensor *a, tn__rnn_state before) {
    tn_tensor *sum = tn_add(p, a), *i = tn_sigmoid(tn__rnn_gate(sum, 0, 4)),
              *f = tn_sigmoid(tn__rnn_gate(sum, 1, 4)), *g = tn_tanh(tn__rnn_gate(sum, 2, 4)),
              *o = tn_sigmoid(tn__rnn_gate(sum, 3, 4)),
              *c = tn_add(tn_mul(f, before.c), tn_mul(i, g));
    return (tn__rnn_state){tn_mul(o, tn_tanh(c)), c};
}

static tn_tensor *lstm_compose(tn_op_call *c) {
    return tn__rnn_compose(c, lstm_step);
}

const tn_op tn__op_lstm = {
    TN__RNN_OP,
    .name = "lstm",
    .fields = {TN_FIELD(tn__rnn_args, reverse)},
    .results = 3,
    .inputs = {TN__RNN_NAMES, "c0"},
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(3) | TN_SAVES_OUTPUT(4) | TN_SAVES_OUTPUT(5),
    .compose = lstm_compose,
    /* As in rnn.c. */
    .samples = "{-1:1, -0.7:0.7, -0.7:0.7, -0.5:0.5, -0.5:0.5, whole 1:4, -1:1} [3, 2, 3] [8, 3] "
               "[8, 2] [8] [8] - [2, 2] [2, 2]; "
               "[3, 2, 2] [8, 2] [8, 2] [8] [8] [2] [2, 2] [2, 2] reverse=True; "
               "{-1:1, -0.7:0.7, -0.7:0.7, -0.5:0.5, -0.5:0.5, whole 1:5, -1:1} [4, 3, 2] [8, 2] "
               "[8, 2] - - [3] - -; [2, 2, 2] [12, 2] [12, 3] [12] - - - - reverse=True; "
               "[1, 1, 1] [4, 1] [4, 1] - [4] - [1, 1] [1, 1]; "
               "{-1:1, -0.7:0.7, -0.7:0.7, -0.5:0.5, -0.5:0.5, whole 1:4, -1:1} [3, 0, 2] [8, 2] "
               "[8, 2] [8] [8] [0] [0, 2] [0, 2]; "
               "[3, 14, 5] [132, 5] [132, 33] [132] [132] [14] [14, 33] [14, 33] reverse=True",
    .sample_args = &(const tn__rnn_args){.cell = TN_CELL_LSTM},
};

tn_tensor *tn_lstm_op(tn_tensor *x, tn_tensor *h0, tn_tensor *c0, tn_rnn_weights w,
                      tn_tensor *lengths, bool reverse, tn_tensor **hn, tn_tensor **cn) {
    return tn__rnn_apply(&tn__op_lstm, (tn__rnn_args){TN_CELL_LSTM, reverse}, x, h0, c0, w, lengths,
                         hn, cn);
}
