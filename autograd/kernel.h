/* Between tensors and kernels: operands as descriptors, gradients that kernels fill,
 * statuses as errors. */
#ifndef TERN_AUTOGRAD_KERNEL_H
#define TERN_AUTOGRAD_KERNEL_H

#include "tensor/tensor.h"
#include "tern/sys/op.h"

/* Whether a kernel, or the host's loops, may run op's forward or gradient on `device`; and whether
 * the device has kernels of its own for op. */
bool tn__kernel_runs(const tn_op *op, tn_device device, bool backward);
bool tn__kernel_owned(const tn_op *op, tn_device device);

/* Whether its results have memory of their own. */
static inline bool tn__op_fills(const tn_op *op) {
    return op->forward || op->host.forward || op->compose || op->kernel;
}

/* Describes inputs and outputs and runs op->forward or the device's own kernel; where there is
 * none, or with TN_EUNSUPPORTED, op->host. TN_EUNSUPPORTED: use the composition; nothing was
 * raised. Anything else except TN_OK was raised. */
tn_status tn__kernel_forward(tn_op_call *c);

/* Runs op->backward_kernel or the device's own kernel, or else op->host, and returns what it made.
 * TN_EUNSUPPORTED: there is none for this device or these dtypes; nothing has happened and nothing
 * was raised. Anything else but TN_OK was raised. */
tn_status tn__kernel_backward(tn_op_grad *g);

/* The device that the operation ran on: that of a gradient that arrived. */
static inline tn_device tn__gradient_device(const tn_op_grad *g) {
    int k = 0;
    while (k < g->outputs - 1 && !g->dout[k]) {
        k++;
    }
    return g->dout[k]->storage->device;
}

/* bf16 and f16 as f32 (recorded, while recording is on); anything else, and NULL, unchanged. */
tn_tensor *tn__widened(tn_tensor *t);

#endif
