/* Between tensors and kernels: operands as descriptors, gradients that kernels fill,
 * statuses as errors. */
#ifndef TERN_AUTOGRAD_KERNEL_H
#define TERN_AUTOGRAD_KERNEL_H

#include "tern/sys/op.h"

/* Whether op has a kernel, or host loops, that may run on `device`, for its forward or its
 * gradient. */
bool tn__kernel_there(const tn_op *op, tn_device device, bool backward);

/* Whether its results have memory of their own. */
static inline bool tn__op_fills(const tn_op *op) {
    return op->forward || op->host.forward || op->compose || op->kernel;
}

/* Describes inputs and outputs and runs op->forward or the device's own kernel; where there is
 * none, or with TN_EUNSUPPORTED, op->host. TN_EUNSUPPORTED: use the composition; nothing was
 * raised. Anything else except TN_OK was raised. */
tn_status tn__kernel_forward(tn_op_call *c);

/* rule.c: while the rule of g runs: if input i is a leaf whose gradient may be written in place,
 * an alias of that place (tn__leaf_lend). Else NULL. */
tn_tensor *tn__grad_place(tn_op_grad *g, int i);

/* The gradient that input i, a leaf or a leaf's low-precision copy, has from before the run, where
 * a kernel may add to it what the run adds: the whole of that, with nothing to be seen in between.
 * On a device; on a CPU an addition does not round as a product that adds. NULL: it may not. After
 * the kernel has: tn__grad_continued, and nothing is given. */
tn_tensor *tn__grad_before(tn_op_grad *g, int i);
void tn__grad_continued(tn_op_grad *g, int i);

/* Runs op->backward_kernel or the device's own kernel, or else op->host, and returns what it made.
 * TN_EUNSUPPORTED: there is none for this device or these dtypes; nothing has happened and nothing
 * was raised. Anything else but TN_OK was raised. */
tn_status tn__kernel_backward(tn_op_grad *g);

/* bf16 and f16 as f32 (recorded, while recording is on); anything else, and NULL, unchanged. */
tn_tensor *tn__widened(tn_tensor *t);

#endif
