/* What cumsum and cumprod share (cumprod.c). */
#ifndef TERN_OPS_CUMULATIVE_H
#define TERN_OPS_CUMULATIVE_H

#include "backends/lines.h"
#include "ops/host.h"

bool tn__cumulative_shape(tn_op_call *c);
tn_status tn__cumulate(const tn_op_call *c, bool product); /* or sum */
tn_tensor *tn__cumulative_apply(const tn_op *op, tn_tensor *x, int dim, bool reverse);

/* y[k] = b[k] + a[k] y[k - 1] along dim, with 0 before the first; in reverse from y[k + 1]. */
tn_tensor *tn__linear_scan(tn_tensor *b, tn_tensor *a, int dim, bool reverse);
/* Shifts each element to the next position or, with `back`, to the previous one; the free end gets
 * `value`. */
tn_tensor *tn__shift(tn_tensor *t, int dim, bool back, double value);

#endif
