/* y = -1, 0 or 1, the sign of x; 0 for NaN
 *
 *     x: any shape, all but bool       y: like x
 *     dx = 0
 */
#include "ops/elementwise/rows.h"

static void sign_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_zeros_like(g->dout[0]));
}

TN_UNARY(sign, TN_SIGN, number, "{0.1:3} *; {-3:-0.1} *")
