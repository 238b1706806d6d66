/* y = a - b trunc(a / b), exactly, like C's fmod and, for integers, %; a's sign
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy    db = -dy · trunc(a / b)
 *
 * For integers x % 0 is x, for floats NaN.
 */
#include "ops/elementwise/rows.h"

static void fmod_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0];
    if (g->wants[0]) { tn_op_give(g, 0, dy); }
    if (g->wants[1]) {
        tn_tensor *a = tn_op_saved_input(g, 0), *b = tn_op_saved_input(g, 1);
        tn_op_give(g, 1, tn_neg(tn_mul(dy, tn__fmod_times(a, b))));
    }
}

/* (a - fmod(a, b)) / b is whole but for rounding; a / b may be rounded up to a whole number. */
tn_tensor *tn__fmod_times(tn_tensor *a, tn_tensor *b) {
    return tn_round(tn_div(tn_sub(a, tn_fmod(a, b)), b));
}

TN_BINARY(fmod, TN_FMOD, number2, TN__FMOD_SAMPLES, .saves_for = {0, TN_SAVES_INPUTS},
          .flags = TN_OP_WIDE)

tn_tensor *tn__filled_divisor(const tn_tensor *x, double k, const char *operation) {
    tn_tensor *b = tn__scalar_like(x, k, operation);
    if (k == 0.0 && !tn_is_inert(b) && !tn_dtype_is_float(x->dtype)) {
        return tn__refused(TN_EVALUE, operation,
                           "x is %s but k is 0 (a remainder needs another divisor)",
                           tn_dtype_name(x->dtype));
    }
    return b;
}

tn_tensor *tn_fmod_scalar(tn_tensor *x, double k) {
    return tn_fmod(x, tn__filled_divisor(x, k, "fmod_scalar"));
}
