/* y = a - b floor(a / b), exactly, like Python's %; b's sign
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy    db = -dy · floor(a / b)
 *
 * For integers x % 0 is x, for floats NaN. Computed as fmod, plus b where that has the other sign.
 */
#include "ops/elementwise/rows.h"

static void remainder_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0];
    if (g->wants[0]) { tn_op_give(g, 0, dy); }
    if (g->wants[1]) {
        tn_tensor *a = tn_op_saved_input(g, 0), *b = tn_op_saved_input(g, 1);
        tn_tensor *times = tn__fmod_times(a, b),
                  *more = tn_ne(tn_op_saved_output(g, 0), tn_fmod(a, b));
        times = tn_where(more, tn_add_scalar(times, -1.0), times);
        tn_op_give(g, 1, tn_neg(tn_mul(dy, times)));
    }
}

TN_BINARY(remainder, TN_REMAINDER, number2, TN__FMOD_SAMPLES,
          .saves_for = {0, TN_SAVES_INPUTS | TN_SAVES_OUTPUT(0)}, .flags = TN_OP_WIDE)

tn_tensor *tn_remainder_scalar(tn_tensor *x, double k) {
    return tn_remainder(x, tn__filled_divisor(x, k, "remainder_scalar"));
}
