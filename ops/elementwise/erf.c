/* y = erf(x) = 2 / sqrt(pi) · integral of exp(-t²) from 0 to x
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · 2 / sqrt(pi) · exp(-x²)
 */
#include "ops/elementwise/rows.h"

static void erf_backward(tn_op_grad *g) {
    const double k = 1.1283791670955126; /* 2 / sqrt(pi) */
    tn_tensor *x = tn_op_saved_input(g, 0);
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_mul_scalar(tn_exp(tn_neg(tn_square(x))), k)));
}

TN_UNARY(erf, TN_ERF, float, "*; [5]=(0, -0, 6, -6, 1e-3)", .saves = TN_SAVES_INPUT(0),
         .flags = TN_OP_WIDE)
