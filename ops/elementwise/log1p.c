/* y = log(1 + x), accurate near 0
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / (1 + x)
 *
 * -inf at -1, NaN below.
 */
#include "ops/elementwise/rows.h"

static void log1p_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_add_scalar(tn_op_saved_input(g, 0), 1.0)));
}

TN_UNARY(log1p, TN_LOG1P, float, "{-0.7:3} *; [6]=(1e4, 0, -0, 1e-6, -1e-6, -0.99)",
         .saves = TN_SAVES_INPUT(0), .flags = TN_OP_WIDE)
