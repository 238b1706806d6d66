/* y = exp(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · y
 */
#include "ops/elementwise/rows.h"

static void exp_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_op_saved_output(g, 0)));
}

TN_UNARY(exp, TN_EXP, float, "*; [5]=(-20, 10, 0, -0, 1e-4)", .saves = TN_SAVES_OUTPUT(0))
