/* y = the smallest whole number >= x
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = 0
 */
#include "ops/elementwise/rows.h"

static void ceil_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_zeros_like(g->dout[0]));
}

TN_UNARY(ceil, TN_CEIL, float, "{0.1:0.4} *; {-2.9:-2.6} *; [4]=(-1.25, 3.75, 100.25, -0.25)")
