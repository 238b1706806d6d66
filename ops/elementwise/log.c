/* y = log(x), natural; -inf at 0, NaN below
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / x
 */
#include "ops/elementwise/rows.h"

static void log_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_div(g->dout[0], tn_op_saved_input(g, 0)));
}

TN_UNARY(log, TN_LOG, float, "{0.1:3} *; [4]=(1e-2, 1, 50, 1.001)", .saves = TN_SAVES_INPUT(0))
