/* y = the angle of the point (b, a), in (-pi, pi]
 *
 *     a, b: shapes that broadcast, same dtype, f32 f64 bf16 f16       y: the common shape
 *     da = dy b / (a² + b²)        db = -dy a / (a² + b²)
 *
 * At (0, 0), and where a² + b² is too small for the dtype, both are 0, as in PyTorch. There dy and
 * the divisor are replaced beforehand: a quotient that is masked afterwards would still bring NaN
 * into a second derivative. */
#include "ops/elementwise/rows.h"

static void atan2_backward(tn_op_grad *g) {
    tn_tensor *a = tn_op_saved_input(g, 0), *b = tn_op_saved_input(g, 1);
    tn_tensor *zero = tn__constant(a, 0.0), *one = tn__constant(a, 1.0);
    tn_tensor *squares = tn_add(tn_square(a), tn_square(b)), *none = tn_eq(squares, zero);
    tn_tensor *turn = tn_div(tn_where(none, zero, g->dout[0]), tn_where(none, one, squares));
    if (g->wants[0]) { tn_op_give(g, 0, tn_mul(turn, b)); }
    if (g->wants[1]) { tn_op_give(g, 1, tn_neg(tn_mul(turn, a))); }
}

/* All four quadrants, and the axes. */
TN_BINARY(atan2, TN_ATAN2, float2,
          "{0.3:3, -3:3} ** **; [7]=(1, 1, -1, -1, 0, 2, -3) [7]=(2, -2, 2, -2, 1, 0, 0)",
          .saves = TN_SAVES_INPUTS, .flags = TN_OP_WIDE)
