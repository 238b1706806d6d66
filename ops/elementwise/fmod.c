/* y = a - b trunc(a / b), exactly, like C's fmod and, for integers, %; a's sign
 *
 *     a, b: shapes that broadcast, same dtype, any but bool       y: the common shape
 *     da = dy    db = -dy · trunc(a / b)
 *
 * For integers x % 0 is x, for floats NaN.
 */
#include "ops/op.h"

static tn_status fmod_forward(const tn_op_call *c) {
    return tn__binary(c, TN_FMOD);
}

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

/* All signs; below the divisor, and several times as large. */
void tn__fmod_samples(tn_op_samples *s) {
    static const double a[] = {5.25, -5.25, 5.25, -5.25, 0.75, -0.75, 100.25},
                        b[] = {2.0, 2.0, -2.0, -2.0, 4.0, 4.0, -3.0};
    tn_sample_binary(s, 0.1, 0.9, 1.1, 1.9);
    tn_sample_binary(s, -0.9, -0.1, 1.1, 1.9);
    tn__sample_values2(s, a, b, 7, true);
}

const tn_op tn__op_fmod = {
    .name = "fmod",
    .inputs = {"a", "b"},
    .saves_for = {0, TN_SAVES_INPUT(0) | TN_SAVES_INPUT(1)},
    .shape = tn__shape_number2,
    .forward = fmod_forward,
    .backward = fmod_backward,
    .flags = TN_OP_WIDE,
    .add_samples = tn__fmod_samples,
};

tn_tensor *tn_fmod(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_fmod, NULL, a, b);
}

tn_tensor *tn__filled_divisor(const tn_tensor *x, double k, const char *operation) {
    tn_tensor *b = tn__scalar_like(x, k, operation);
    if (k == 0.0 && !tn_is_inert(b) && !tn_dtype_is_float(x->dtype)) {
        tn__raise(TN_EVALUE, operation, "x is %s but k is 0 (a remainder needs another divisor)",
                  tn_dtype_name(x->dtype));
        return tn_inert();
    }
    return b;
}

tn_tensor *tn_fmod_scalar(tn_tensor *x, double k) {
    return tn_fmod(x, tn__filled_divisor(x, k, "fmod_scalar"));
}
