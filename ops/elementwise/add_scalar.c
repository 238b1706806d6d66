/* y = x + k
 *
 *     x: any shape, all but bool (a whole k for integers)       y: like x
 *     dx = dy
 */
#include "ops/elementwise/rows.h"

static void add_scalar_backward(tn_op_grad *g) {
    tn_op_give(g, 0, g->dout[0]);
}

TN_UNARY_K(add_scalar, TN_ADD_K, scalar, "* k=1.5; * k=-100.0")
