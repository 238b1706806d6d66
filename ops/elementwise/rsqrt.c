/* y = 1 / sqrt(x); inf at 0, NaN below
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy · y³ / 2
 */
#include "ops/elementwise/rows.h"

static void rsqrt_backward(tn_op_grad *g) {
    tn_tensor *y = tn_op_saved_output(g, 0);
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_mul_scalar(tn_mul(y, tn_square(y)), -0.5)));
}

TN_UNARY(rsqrt, TN_RSQRT, float, "{0.3:4} *; [3]=(1e-1, 1, 100)", .saves = TN_SAVES_OUTPUT(0),
         .flags = TN_OP_WIDE)
