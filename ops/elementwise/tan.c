/* y = tan(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy (1 + y²)
 */
#include "ops/elementwise/rows.h"

static void tan_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_add_scalar(tn_square(tn_op_saved_output(g, 0)), 1.0)));
}

TN_UNARY(tan, TN_TAN, float, "{-1.2:1.2} *; {2:4} *; [3]=(0, -0, 1e-4)",
         .saves = TN_SAVES_OUTPUT(0), .flags = TN_OP_WIDE)
