/* y = 1 / x
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy y²
 */
#include "ops/elementwise/rows.h"

static void reciprocal_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(tn_mul(g->dout[0], tn_square(tn_op_saved_output(g, 0)))));
}

TN_UNARY(reciprocal, TN_RECIPROCAL, float, "{0.3:3} *; {-3:-0.3} *; [2]=(100, -0.05)",
         .saves = TN_SAVES_OUTPUT(0), .flags = TN_OP_WIDE)
