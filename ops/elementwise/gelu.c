/* y = x · P(x),  P(x) = (1 + erf(x / sqrt 2)) / 2
 * (Hendrycks, Gimpel 2016, arXiv:1606.08415)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · (P(x) + x p(x)),  p(x) = exp(-x² / 2) / sqrt(2 pi)
 */
#include "ops/elementwise/rows.h"

static tn_status gelu_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_GELU_ERF_GRAD, b->x[0]);
}

static void gelu_backward(tn_op_grad *g) {
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = g->dout[0];
    tn_tensor *P =
        tn_mul_scalar(tn_add_scalar(tn_erf(tn_mul_scalar(x, 0.70710678118654752)), 1.0), 0.5);
    tn_tensor *p = tn_mul_scalar(tn_exp(tn_mul_scalar(tn_square(x), -0.5)), 0.39894228040143268);
    tn_op_give(g, 0, tn_mul(dy, tn_add(P, tn_mul(x, p))));
}

/* The minimum at x = -0.752, both tails, and zero. */
TN_UNARY(gelu, TN_GELU_ERF, float, "*; [7]=(-0.752, 0, -0, -30, 30, -300, 300)",
         .saves = TN_SAVES_INPUT(0), .backward_kernel = gelu_backward_kernel, .flags = TN_OP_WIDE)
