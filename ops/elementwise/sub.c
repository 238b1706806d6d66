/* y = a - b
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy        db = -dy
 */
#include "ops/elementwise/rows.h"

static void sub_backward(tn_op_grad *g) {
    if (g->wants[0]) { tn_op_give(g, 0, g->dout[0]); }
    if (g->wants[1]) { tn_op_give(g, 1, tn_neg(g->dout[0])); }
}

TN_BINARY(sub, TN_SUB, number2, "** **")
