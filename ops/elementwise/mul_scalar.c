/* y = x · k
 *
 *     x: any shape, all but bool (a whole k for integers)       y: like x
 *     dx = dy · k
 */
#include "ops/elementwise/rows.h"

static void mul_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_op_give(g, 0, tn_mul_scalar(g->dout[0], k));
}

TN_UNARY_K(mul_scalar, TN_MUL_K, scalar, "* k=-2.5; * k=0.0")
