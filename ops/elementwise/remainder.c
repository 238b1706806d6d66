/* y = a - b floor(a / b), exactly, like Python's %; b's sign
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy    db = -dy · floor(a / b)
 *
 * For integers x % 0 is x, for floats NaN. Computed as fmod, plus b where that has the other sign.
 */
#include "ops/op.h"

static tn_status remainder_forward(const tn_op_call *c) {
    return tn__binary(c, TN_REMAINDER);
}

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

const tn_op tn__op_remainder = {
    .name = "remainder",
    .inputs = {"a", "b"},
    .saves_for = {0, TN_SAVES_INPUT(0) | TN_SAVES_INPUT(1) | TN_SAVES_OUTPUT(0)},
    .shape = tn__shape_number2,
    .forward = remainder_forward,
    .backward = remainder_backward,
    .flags = TN_OP_WIDE,
    .add_samples = tn__fmod_samples,
};

tn_tensor *tn_remainder(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_remainder, NULL, a, b);
}

tn_tensor *tn_remainder_scalar(tn_tensor *x, double k) {
    return tn_remainder(x, tn__filled_divisor(x, k, "remainder_scalar"));
}
