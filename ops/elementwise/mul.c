/* y = a · b
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy · b    db = dy · a
 */
#include "ops/elementwise/rows.h"

static void mul_backward(tn_op_grad *g) {
    if (g->wants[0]) { tn_op_give(g, 0, tn_mul(g->dout[0], tn_op_saved_input(g, 1))); }
    if (g->wants[1]) { tn_op_give(g, 1, tn_mul(g->dout[0], tn_op_saved_input(g, 0))); }
}

TN_BINARY(mul, TN_MUL, number2, "** **; [4]=(0, -0, 50, 1e-3) [4]=(2, 3, -40, 1e-2)",
          .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0)})
