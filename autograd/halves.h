/* A backward in two halves, for pipelines (ZB-H1; Qi et al. 2023, arXiv:2401.10241): the gradient
 * of one input now, for which another rank waits, and those of all other leaves later.
 *
 *     tn__run *rest = tn__backward_input(loss, NULL, x);      x's gradient is there
 *     ...
 *     tn__backward_rest(rest);                                now those of the parameters
 *
 * The first half runs the nodes that lead to x, each for the inputs that do. A node that leads to
 * other leaves too keeps its gradient, and what it has saved, for the second half, in which its
 * rule is called again for these. So a matmul computes dx in the first half and dw in the second,
 * and nothing twice. A norm reads its input twice, a fused activation is differentiated twice, and
 * a composition is composed twice. What the engine sums has the order of a whole backward, and so
 * the same bits. Hooks of results run in the half in which their gradient is first complete, once;
 * hooks of leaves when it is accumulated.
 */
#ifndef TERN_AUTOGRAD_HALVES_H
#define TERN_AUTOGRAD_HALVES_H

#include "tern/sys/op.h"

/* What is left of a backward after its first half. */
typedef struct tn__run tn__run;

/* Backward from root, with the gradient grad (NULL: 1), of the leaf input only. NULL: nothing
 * leads there, and all is left to do. Returns what is left; NULL after raising. */
TN_API tn__run *tn__backward_input(tn_tensor *root, tn_tensor *grad, tn_tensor *input);
/* Does it, and frees it. Each half is a backward to what listens to one (tn_after_backward). */
TN_API tn_status tn__backward_rest(tn__run *rest);
TN_API void tn__rest_free(tn__run *rest); /* undone */

/* ---- A rule that runs a graph of its own (recompute.c) --------------------------------------- */

/* While a rule is called in halves, its place for what is left of its own graph, which is NULL in
 * the first half and freed by whoever does it. NULL: it is called once, for all. */
tn__run **tn__rule_rest(const tn_op_grad *g);
bool tn__rule_later(const tn_op_grad *g, int i); /* input i is wanted in the second half */

/* tn_grad in halves, with allow_unused: the rest keeps references to the tensors of `later`, and
 * writes their gradients. */
tn__run *tn__grad_inputs(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                         tn_tensor *const *inputs, int inputs_n, tn_tensor *const *later,
                         int later_n, tn_tensor **results);
tn_status tn__grad_rest(tn__run *rest, tn_tensor **results);

#endif
