/* What other operations use of cross_entropy. */
#ifndef TERN_OPS_LOSS_CROSS_ENTROPY_H
#define TERN_OPS_LOSS_CROSS_ENTROPY_H

#include "backends/cross_entropy.h"
#include "ops/op.h"

/* The kernel on c, whose inputs are logits and labels: a loss per row to `losses`, top and log_sum
 * to outputs 1 and 2. Its error names a label that is none of the classes. */
tn_status tn__cross_entropy_rows(const tn_op_call *c, const tn_cross_entropy_args *args,
                                 const tn_desc *losses);

/* tn_op.dx_out of an operation whose args begin with tn_cross_entropy_options: dx goes to the
 * memory of the logits, input i, with consume_logits and where an operation filled it. */
tn_tensor *tn__cross_entropy_dx_out(tn_op_grad *g, int i, tn_tensor *const *made);

/* tn_cross_entropy_with, of logits that the caller does not use again: if they are on a device, are
 * to be averaged, and no one else holds them, the forward already writes their gradient over them,
 * so that they are read once. `ahead`: the gradient that the loss itself will probably get (1 for a
 * root). Another one costs a pass that rescales. Not for f16, where what is small would be gone
 * before it is rescaled. The result cannot be differentiated twice. */
tn_tensor *tn__cross_entropy_ahead(tn_tensor *logits, tn_tensor *labels,
                                   tn_cross_entropy_options options, double ahead);

#endif
