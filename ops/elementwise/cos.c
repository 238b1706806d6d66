/* y = cos(x), x in radians
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy · sin(x)
 */
#include "ops/elementwise/rows.h"

static void cos_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(tn_mul(g->dout[0], tn_sin(tn_op_saved_input(g, 0)))));
}

TN_UNARY(cos, TN_COS, float, "{-6:6} *; [4]=(0, -0, 1.5707963267948966, -40)",
         .saves = TN_SAVES_INPUT(0))
