/* What rnn, gru and lstm share: one layer of a recurrent net in one direction, over all times.
 *
 *     x (T, B, I), weight_ih (G H, I), weight_hh (G H, H), bias_ih and bias_hh (G H) or absent,
 *     lengths (B) i64 or i32, or absent, h0 and c0 (B, H) or absent: zeros
 *     y (T, B, H), hn and cn (B, H)
 *
 * With s = (h, c) the state, starting at (h0, c0), and the times in order or, `reverse`, from the
 * last:  p = x_t weight_ih^T + bias_ih,  a = h weight_hh^T + bias_hh,  s = cell(p, a, s),  y_t = h.
 * Row b of the batch is active at times below lengths[b]; at others its state stays and y is 0.
 *
 * p for all times is one product, and so is each weight's gradient: only a = h weight_hh^T has to
 * be computed step by step, which the `recurrent` kernels do (include/tern/sys/backend.h).
 */
#ifndef TERN_OPS_RNN_RECURRENT_H
#define TERN_OPS_RNN_RECURRENT_H

#include "ops/dims.h"

/* The inputs; only LSTM has c0. */
enum {
    TN__RNN_X,
    TN__RNN_W_IH,
    TN__RNN_W_HH,
    TN__RNN_B_IH,
    TN__RNN_B_HH,
    TN__RNN_LENGTHS,
    TN__RNN_H0,
    TN__RNN_C0
};

#define TN__RNN_NAMES "x", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "lengths", "h0"

typedef struct tn__rnn_args {
    tn_cell cell;
    bool reverse;
} tn__rnn_args;

/* Makes the results and, if a gradient may be needed, what kernels save: gates, h_before, c_before.
 * False after raising. */
bool tn__rnn_shape(tn_op_call *c);

/* By kernels. TN_EUNSUPPORTED for bf16 and f16. */
tn_status tn__rnn_forward(const tn_op_call *c);
tn_status tn__rnn_backward(const tn_op_back *b);

/* Composed of operations: one step of a cell, from p and a (B, G H). */
typedef struct tn__rnn_state {
    tn_tensor *h, *c;
} tn__rnn_state;
typedef tn__rnn_state (*tn__rnn_step)(tn_tensor *p, tn_tensor *a, tn__rnn_state before);
tn_tensor *tn__rnn_compose(tn_op_call *c, tn__rnn_step step);

/* Gate q of n in a (B, n H). */
tn_tensor *tn__rnn_gate(tn_tensor *a, int q, int n);

void tn__rnn_work(tn_op_work *w);

/* What the descriptors have in common. */
#define TN__RNN_OP                                                                    \
    .args_size = sizeof(tn__rnn_args),                                                \
    .optional = 1u << TN__RNN_B_IH | 1u << TN__RNN_B_HH | 1u << TN__RNN_LENGTHS |     \
                1u << TN__RNN_H0 | 1u << TN__RNN_C0,                                  \
    .shape = tn__rnn_shape, .forward = tn__rnn_forward,                               \
    .host = {tn__rnn_forward, tn__rnn_backward}, .backward_kernel = tn__rnn_backward, \
    .x_rows = {TN_ROWS(1)}, .widens = TN__RNN_WEIGHTS, .adds = TN__RNN_WEIGHTS,       \
    .flags = TN_OP_WIDE, .work = tn__rnn_work
#define TN__RNN_WEIGHTS \
    (1u << TN__RNN_W_IH | 1u << TN__RNN_W_HH | 1u << TN__RNN_B_IH | 1u << TN__RNN_B_HH)

/* Checks that lengths are 1 … T, which a kernel cannot. Calls op; stores in *hn and, of LSTM, *cn,
 * unless NULL. Returns y. */
tn_tensor *tn__rnn_apply(const tn_op *op, tn__rnn_args args, tn_tensor *x, tn_tensor *h0,
                         tn_tensor *c0, tn_rnn_weights w, tn_tensor *lengths, tn_tensor **hn,
                         tn_tensor **cn);

#endif
