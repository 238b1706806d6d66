/* y = a + b
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy        db = dy
 *
 * The engine sums a gradient over broadcast dimensions; rules here do not.
 */
#include "ops/elementwise/rows.h"

static void add_backward(tn_op_grad *g) {
    if (g->wants[0]) { tn_op_give(g, 0, g->dout[0]); }
    if (g->wants[1]) { tn_op_give(g, 1, g->dout[0]); }
}

TN_BINARY(add, TN_ADD, number2, "** **")
