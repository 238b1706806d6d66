/* y = k - x
 *
 *     x: any shape, all but bool (a whole k for integers)       y: like x
 *     dx = -dy
 */
#include "ops/elementwise/rows.h"

static void rsub_scalar_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(g->dout[0]));
}

TN_UNARY_K(rsub_scalar, TN_RSUB_K, scalar, "* k=1.0; * k=-0.75")
