/* y = x · s(x),  s(x) = 1 / (1 + exp(-x))
 * (Elfwing et al. 2017, arXiv:1702.03118)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · s (1 + x (1 - s))
 */
#include "ops/elementwise/rows.h"

static tn_status silu_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_SILU_GRAD, b->x[0]);
}

static void silu_backward(tn_op_grad *g) {
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = g->dout[0];
    tn_tensor *s = tn_sigmoid(x);
    tn_tensor *slope = tn_mul(s, tn_add_scalar(tn_mul(x, tn_rsub_scalar(s, 1.0)), 1.0));
    tn_op_give(g, 0, tn_mul(dy, slope));
}

/* The minimum at x = -1.278, both tails (exp must not overflow), and zero. */
TN_UNARY(silu, TN_SILU, float, "*; [7]=(-1.278, 0, -0, -90, 90, -300, 300)",
         .saves = TN_SAVES_INPUT(0), .backward_kernel = silu_backward_kernel, .flags = TN_OP_WIDE)
