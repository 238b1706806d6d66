/* y = x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019, arXiv:1905.02244)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy where x >= 3, 0 where x <= -3, between them dy (x / 3 + 1/2)
 */
#include "ops/elementwise/rows.h"

static void hardswish_backward(tn_op_grad *g) {
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = g->dout[0], *zero = tn__constant(dy, 0.0);
    tn_tensor *between = tn_mul(dy, tn_add_scalar(tn_div_scalar(x, 3.0), 0.5));
    tn_tensor *upper = tn_where(tn_ge(x, tn__constant(x, 3.0)), dy, between);
    tn_op_give(g, 0, tn_where(tn_le(x, tn__constant(x, -3.0)), zero, upper));
}

static tn_status hardswish_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_HARDSWISH_GRAD, b->x[0]);
}

TN_UNARY(hardswish, TN_HARDSWISH, float, "{-2.9:2.9} *; {3.1:5} *; {-5:-3.1} *; [3]=(-100, 100, 0)",
         .saves = TN_SAVES_INPUT(0), .backward_kernel = hardswish_backward_kernel,
         .flags = TN_OP_WIDE)
