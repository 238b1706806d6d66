/* gru: y_t = h_t of gated recurrent units (Cho et al. 2014, arXiv:1406.1078), with the reset gate
 * where PyTorch has it
 *
 *     r = sigmoid(p0 + a0)    z = sigmoid(p1 + a1)    n = tanh(p2 + r a2)
 *     h' = (1 - z) n + z h
 *
 *     Shapes, p, a, lengths and directions: recurrent.h. f32 f64 bf16 f16
 *     Gradients: backends/ref/recurrent.c
 */
#include "ops/rnn/recurrent.h"

static tn__rnn_state gru_step(tn_tensor *p, tn_tensor *a, tn__rnn_state before) {
    tn_tensor *r = tn_sigmoid(tn_add(tn__rnn_gate(p, 0, 3), tn__rnn_gate(a, 0, 3))),
              *z = tn_sigmoid(tn_add(tn__rnn_gate(p, 1, 3), tn__rnn_gate(a, 1, 3))),
              *n = tn_tanh(tn_add(tn__rnn_gate(p, 2, 3), tn_mul(r, tn__rnn_gate(a, 2, 3))));
    tn_tensor *h = tn_add(tn_mul(tn_rsub_scalar(z, 1.0), n), tn_mul(z, before.h));
    return (tn__rnn_state){h, NULL};
}

static tn_tensor *gru_compose(tn_op_call *c) {
    return tn__rnn_compose(c, gru_step);
}

const tn_op tn__op_gru = {
    TN__RNN_OP,
    .name = "gru",
    .fields = {TN_FIELD(tn__rnn_args, reverse)},
    .results = 2,
    .inputs = {TN__RNN_NAMES},
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(2) | TN_SAVES_OUTPUT(3),
    .compose = gru_compose,
    /* As in rnn.c. */
    .samples = "{-1:1, -0.7:0.7, -0.7:0.7, -0.5:0.5, -0.5:0.5, whole 1:4, -1:1} [3, 2, 3] [6, 3] "
               "[6, 2] [6] [6] - [2, 2]; [3, 2, 2] [6, 2] [6, 2] [6] [6] [2] [2, 2] reverse=True; "
               "{-1:1, -0.7:0.7, -0.7:0.7, -0.5:0.5, -0.5:0.5, whole 1:5, -1:1} [4, 3, 2] [6, 2] "
               "[6, 2] - - [3] -; [2, 2, 2] [9, 2] [9, 3] [9] - - - reverse=True; "
               "[1, 1, 1] [3, 1] [3, 1] - [3] - [1, 1]; "
               "{-1:1, -0.7:0.7, -0.7:0.7, -0.5:0.5, -0.5:0.5, whole 1:4, -1:1} [3, 0, 2] [6, 2] "
               "[6, 2] [6] [6] [0] [0, 2]; "
               "[3, 14, 5] [99, 5] [99, 33] [99] [99] [14] [14, 33] reverse=True",
    .sample_args = &(const tn__rnn_args){.cell = TN_CELL_GRU},
};

tn_tensor *tn_gru_op(tn_tensor *x, tn_tensor *h0, tn_rnn_weights w, tn_tensor *lengths,
                     bool reverse, tn_tensor **hn) {
    return tn__rnn_apply(&tn__op_gru, (tn__rnn_args){TN_CELL_GRU, reverse}, x, h0, NULL, w, lengths,
                         hn, NULL);
}
