/* y = exp(x) - 1, accurate near 0
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy (y + 1)
 */
#include "ops/elementwise/rows.h"

static void expm1_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_add_scalar(tn_op_saved_output(g, 0), 1.0)));
}

TN_UNARY(expm1, TN_EXPM1, float, "*; [6]=(-20, 10, 0, -0, 1e-6, -1e-6)",
         .saves = TN_SAVES_OUTPUT(0), .flags = TN_OP_WIDE)
