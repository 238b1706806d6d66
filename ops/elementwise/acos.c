/* y = acos(x); NaN outside [-1, 1]
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy / sqrt(1 - x²)
 */
#include "ops/elementwise/rows.h"

static void acos_backward(tn_op_grad *g) {
    tn_tensor *slope = tn_rsqrt(tn_rsub_scalar(tn_square(tn_op_saved_input(g, 0)), 1.0));
    tn_op_give(g, 0, tn_neg(tn_mul(g->dout[0], slope)));
}

TN_UNARY(acos, TN_ACOS, float, "{-0.8:0.8} *; [4]=(0, -0, 1e-4, 0.9)", .saves = TN_SAVES_INPUT(0),
         .flags = TN_OP_WIDE)
