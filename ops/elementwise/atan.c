/* y = atan(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / (1 + x²)
 */
#include "ops/elementwise/rows.h"

static void atan_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_add_scalar(tn_square(tn_op_saved_input(g, 0)), 1.0)));
}

TN_UNARY(atan, TN_ATAN, float, "*; [4]=(0, -0, 1e-4, 50)", .saves = TN_SAVES_INPUT(0),
         .flags = TN_OP_WIDE)
