/* y = x (1 + t) / 2,  t = tanh(u),  u = c (x + 0.044715 x³),  c = sqrt(2 / pi)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · ((1 + t) / 2 + x (1 - t²) u' / 2),  u' = c (1 + 0.134145 x²)
 *
 * The tanh form of gelu, as in GPT-2: Hendrycks, Gimpel 2016, arXiv:1606.08415.
 */
#include "ops/elementwise/rows.h"

static tn_status gelu_tanh_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_GELU_TANH_GRAD, b->x[0]);
}

/* (1 + t) / 2 is sigmoid(2u) = s. e = sigmoid(-|2u|), the smaller of s and 1 - s, stays accurate
 * where s is rounded to 1, and so do derivatives computed from it: (1 - t²) / 2 = 2 e (1 - e).
 */
static void gelu_tanh_backward(tn_op_grad *g) {
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = g->dout[0];
    const double c = 2.0 * 0.79788456080286536;
    x = tn_clamp(x, -30.0, 30.0); /* so that x² cannot overflow: e is 0 far earlier */
    tn_tensor *xx = tn_square(x), *positive = tn_gt(x, tn__constant(x, 0.0));
    tn_tensor *u = tn_mul_scalar(tn_mul(x, tn_add_scalar(tn_mul_scalar(xx, 0.044715), 1.0)), c);
    tn_tensor *du = tn_mul_scalar(tn_add_scalar(tn_mul_scalar(xx, 0.134145), 1.0), c);
    tn_tensor *e = tn_sigmoid(tn_where(positive, tn_neg(u), u)), *rest = tn_rsub_scalar(e, 1.0);
    tn_tensor *bend = tn_mul(tn_mul(x, tn_mul(e, rest)), du);
    tn_op_give(g, 0, tn_mul(dy, tn_add(tn_where(positive, rest, e), bend)));
}

/* The minimum at x = -0.753, both tails, and zero. */
TN_UNARY(gelu_tanh, TN_GELU_TANH, float, "*; [7]=(-0.753, 0, -0, -30, 30, -300, 300)",
         .saves = TN_SAVES_INPUT(0), .backward_kernel = gelu_tanh_backward_kernel,
         .flags = TN_OP_WIDE)
