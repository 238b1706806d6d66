/* y = sin(x), x in radians
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · cos(x)
 */
#include "ops/elementwise/rows.h"

static void sin_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_cos(tn_op_saved_input(g, 0))));
}

TN_UNARY(sin, TN_SIN, float, "{-6:6} *; [4]=(0, -0, 1.5707963267948966, -40)",
         .saves = TN_SAVES_INPUT(0))
