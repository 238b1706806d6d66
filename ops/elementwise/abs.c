/* y = |x|
 *
 *     x: any shape, all but bool       y: like x
 *     dx = dy · sign(x)
 */
#include "ops/elementwise/rows.h"

static void abs_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_sign(tn_op_saved_input(g, 0))));
}

/* Away from the kink on either side, and the kink itself: there the gradient is 0,
 * as is the central difference. */
TN_UNARY(abs, TN_ABS, number, "{0.1:3} *; {-3:-0.1} *; {once} [3]=(0, -2, 1.5)",
         .saves = TN_SAVES_INPUT(0))
