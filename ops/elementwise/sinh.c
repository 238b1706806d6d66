/* y = sinh(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy cosh(x)
 */
#include "ops/elementwise/rows.h"

static void sinh_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_cosh(tn_op_saved_input(g, 0))));
}

TN_UNARY(sinh, TN_SINH, float, "*; [4]=(0, -0, 1e-4, 10)", .saves = TN_SAVES_INPUT(0),
         .flags = TN_OP_WIDE)
