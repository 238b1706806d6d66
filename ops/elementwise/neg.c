/* y = -x
 *
 *     x: any shape, all but bool       y: like x
 *     dx = -dy
 */
#include "ops/elementwise/rows.h"

static void neg_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(g->dout[0]));
}

TN_UNARY(neg, TN_NEG, number, "*")
