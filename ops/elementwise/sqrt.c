/* y = sqrt(x); NaN below 0
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / (2 y)
 *
 * At 0 the gradient is infinite, as in PyTorch.
 */
#include "ops/elementwise/rows.h"

static void sqrt_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_mul_scalar(tn_op_saved_output(g, 0), 2.0)));
}

TN_UNARY(sqrt, TN_SQRT, float, "{0.1:4} *; [3]=(1e-2, 1, 100)", .saves = TN_SAVES_OUTPUT(0))
