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

#endif
