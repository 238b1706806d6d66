/* Between tensors and kernels: operands as descriptors, gradients that kernels fill,
 * statuses as errors. */
#ifndef TERN_AUTOGRAD_KERNEL_H
#define TERN_AUTOGRAD_KERNEL_H

#include "tern/sys/op.h"

/* Whether the table lacks the entry at this offset; 0 names none. */
bool tn__kernel_lacking(const tn_backend *kernels, size_t entry);

/* Describes inputs and outputs and runs op->forward; with TN_EUNSUPPORTED, or where the table lacks
 * what that needs, op->host. False after raising. */
bool tn__kernel_forward(tn_op_call *c);

/* engine.c: while the rule of g runs, the place of the leaf that is input i, if its gradient may be
 * made there at once (tn__leaf_lend). An alias, or NULL. */
tn_tensor *tn__grad_place(tn_op_grad *g, int i);

/* Runs op->backward_kernel, or else op->host_backward, and gives what it made. TN_EUNSUPPORTED:
 * they are not there or not for this device or these dtypes, nothing has happened and nothing was
 * raised. Anything else but TN_OK was raised. */
tn_status tn__kernel_backward(tn_op_grad *g);

/* bf16 and f16 as f32 (recorded, while recording is on); anything else, and NULL, as it is. */
tn_tensor *tn__widened(tn_tensor *t);

#endif
