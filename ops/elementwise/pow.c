/* y = a ^ b; NaN for a < 0 and a b that is not whole
 *
 *     a, b: shapes that broadcast, same dtype, f32 f64 bf16 f16       y: the common shape
 *     da = dy · b · a ^ (b - 1)
 *     db = dy · y · log(a)
 *
 * The corner cases are PyTorch's: da is 0 where b is 0, even where 1 / a is infinite or NaN (the
 * rule would give 0 · inf), db is 0 where a is 0 and b is not negative (0 · -inf), and NaN where a
 * < 0. There a is replaced by 1 beforehand: a product that is masked afterwards would still bring
 * NaN into a second derivative. */
#include "ops/elementwise/rows.h"

/* 1 / x is a finite number where |x| is above this, a power of two. */
static double largest_that_overflows(tn_dtype dtype) {
    return dtype == TN_F64 ? 0x1p-1024 : 0x1p-128; /* bf16 and f16 come as f32 */
}

static void pow_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0], *a = tn_op_saved_input(g, 0), *b = tn_op_saved_input(g, 1);
    tn_tensor *zero = tn__constant(a, 0.0), *one = tn__constant(a, 1.0);
    if (g->wants[0]) {
        tn_tensor *tiny = tn__constant(a, largest_that_overflows(tn_dtype_of(a)));
        tn_tensor *invertible = tn_gt(tn_abs(a), tiny); /* NaN is not */
        tn_tensor *safe = tn_where(tn_where(invertible, invertible, tn_ne(b, zero)), a, one);
        tn_op_give(g, 0, tn_mul(dy, tn_mul(b, tn_pow(safe, tn_add_scalar(b, -1.0)))));
    }
    if (g->wants[1]) {
        tn_tensor *a_is_0 = tn_eq(a, zero), *flat = tn_where(a_is_0, tn_ge(b, zero), a_is_0);
        tn_op_give(g, 1,
                   tn_mul(dy, tn_mul(tn_op_saved_output(g, 0), tn_log(tn_where(flat, one, a)))));
    }
}

TN_BINARY(pow, TN_POW, float2, "{0.3:3, -2:2} ** **",
          .saves = TN_SAVES_INPUT(0) | TN_SAVES_INPUT(1), .saves_for = {0, TN_SAVES_OUTPUT(0)},
          .flags = TN_OP_WIDE)
