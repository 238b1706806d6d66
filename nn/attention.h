/* What modules with attention have in common, and the blocks around them. */
#ifndef TERN_NN_ATTENTION_H
#define TERN_NN_ATTENTION_H

#include "nn/call.h"
#include "tern/nn.h"
#include "tern/sys/op.h"

/* The inputs of a call: x (B, T, C), and mask and positions, which may be NULL or missing. */
typedef struct tn__sequences {
    tn_tensor *x, *mask, *positions;
} tn__sequences;

/* False after raising. */
bool tn__sequences_of(const tn_module *m, tn_values in, tn__sequences *s);

/* Attention in module m: tn_attention of q (B, H, T, D), k and v (B, G, S, D), or what a strategy
 * puts in its place (tn__attend_rule), which may exchange the ranks' shares of the positions for
 * shares of the heads. The result is (B, H, T, D). */
tn_tensor *tn__attend(const tn_module *m, tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                      tn_attention_options options);

/* The width of one head of a self_attention or grouped_attention, of which this rank may have only
 * some heads; 0 for other modules. */
int64_t tn__head_width(const tn_module *m);
/* How many of its heads of keys and values are here. */
int64_t tn__kv_heads(const tn_module *m);

/* x + branch, which is released at once, as nothing else uses it. */
tn_tensor *tn__add_branch(tn_tensor *x, tn_tensor *branch);

/* m called with that sum, which goes to *sum. Calls that are one operation where the device of x
 * has a kernel for it and a call of m does nothing else (tn__may_fuse). */
tn_tensor *tn__add_norm(tn_layer_norm *m, tn_tensor *x, tn_tensor *branch, tn_tensor **sum);
tn_tensor *tn__add_rms_norm(tn_rms_norm *m, tn_tensor *x, tn_tensor *branch, tn_tensor **sum);
/* tn__may_fuse of m, a linear, which reads this weight; for 8-bit weights, with scales, this is x.
 */
bool tn__linear_may_fuse(const tn_linear *m, const tn_tensor *weight, const tn_tensor *x,
                         const tn_op *op);
/* `next` called with tn_gelu_tanh of m called with x, likewise. */
tn_tensor *tn__linear_gelu_linear(tn_linear *m, tn_linear *next, tn_tensor *x);

/* Whether x has few rows (backends/few_rows.h) and nothing is recorded: for linear_cat. */
bool tn__few_rows(const tn_tensor *x);
/* y[i] = m[i] called with x, 2 or 3 of them: with few rows on such a device one operation, whose
 * result y[i] are views of. Inert after raising. */
void tn__linears(tn_linear *const *m, int n, tn_tensor *x, tn_tensor **y);
/* x + m called with h, likewise. */
tn_tensor *tn__add_linear(tn_linear *m, tn_tensor *h, tn_tensor *x);
/* x + m called with y, whose last product may add x. */
tn_tensor *tn__add_gated_mlp(tn_gated_mlp *m, tn_tensor *y, tn_tensor *x);

/* Applies the activation to x; inert for an invalid one (inits refuse these). */
tn_tensor *tn__activate(tn_activation activation, tn_tensor *x);

/* (T, S), true where query i must not see key j: those after i + S - T. */
tn_tensor *tn__later_mask(int64_t T, int64_t S);

#endif
