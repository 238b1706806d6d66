/* What other operations use of cross_entropy. */
#ifndef TERN_OPS_LOSS_CROSS_ENTROPY_H
#define TERN_OPS_LOSS_CROSS_ENTROPY_H

#include "ops/op.h"

/* tn_op.dx_out of an operation whose args begin with tn_cross_entropy_options: dx goes to the
 * memory of the logits, input i, with consume_logits and where an operation filled it. */
tn_tensor *tn__cross_entropy_dx_out(tn_op_grad *g, int i, tn_tensor *const *made);

#endif
