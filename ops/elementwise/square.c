/* y = x²
 *
 *     x: any shape, all but bool       y: like x
 *     dx = dy · 2 x
 */
#include "ops/elementwise/rows.h"

static void square_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_mul_scalar(tn_op_saved_input(g, 0), 2.0)));
}

TN_UNARY(square, TN_SQUARE, number, "*; [4]=(0, -0, -30, 1e-3)", .saves = TN_SAVES_INPUT(0))
