/* y = the smaller of a and b; NaN when either is NaN
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy where a is y, dy / 2 where a = b, 0 where a > b;  db the same
 *
 * With a NaN both get dy, as in PyTorch.
 */
#include "ops/elementwise/rows.h"

static void minimum_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0], *a = tn_op_saved_input(g, 0), *b = tn_op_saved_input(g, 1);
    tn_tensor *shared = tn_where(tn_eq(a, b), tn_mul_scalar(dy, 0.5), dy),
              *zero = tn__constant(dy, 0.0);
    if (g->wants[0]) { tn_op_give(g, 0, tn_where(tn_gt(a, b), zero, shared)); }
    if (g->wants[1]) { tn_op_give(g, 1, tn_where(tn_lt(a, b), zero, shared)); }
}

TN_BINARY(minimum, TN_MINIMUM, number2, "** **; {once} [4]=(1, -2, 0, 5) [4]=(1, -2, 3, -5)",
          .saves = TN_SAVES_INPUT(0) | TN_SAVES_INPUT(1))
