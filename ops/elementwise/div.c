/* y = a / b, as IEEE says (1 / 0 = inf, 0 / 0 = NaN)
 *
 *     a, b: shapes that broadcast, same dtype, f32 f64 bf16 f16       y: the common shape
 *     da = dy / b    db = -dy · (a / b) / b
 *
 * db divides twice: b² would overflow or underflow earlier.
 */
#include "ops/elementwise/rows.h"

static void div_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0], *b = tn_op_saved_input(g, 1);
    if (g->wants[0]) { tn_op_give(g, 0, tn_div(dy, b)); }
    if (g->wants[1]) {
        tn_tensor *a = tn_op_saved_input(g, 0);
        tn_op_give(g, 1, tn_neg(tn_mul(dy, tn_div(tn_div(a, b), b))));
    }
}

TN_BINARY(div, TN_DIV, float2, "{-3:3, 0.3:3} ** **; {-3:3, -3:-0.3} ** **",
          .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0) | TN_SAVES_INPUT(1)},
          .flags = TN_OP_WIDE)
