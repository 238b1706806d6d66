/* y = tanh(x)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · (1 - y²)
 */
#include "ops/elementwise/rows.h"

static tn_status tanh_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_TANH_GRAD, b->y[0]);
}

static void tanh_backward(tn_op_grad *g) {
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_op_give(g, 0, tn_mul(dy, tn_rsub_scalar(tn_square(y), 1.0)));
}

/* Both tails are flat: the result is 1 and the gradient 0. */
TN_UNARY(tanh, TN_TANH, float, "*; [7]=(0, -0, 20, -20, 1e-3, -300, 300)",
         .saves = TN_SAVES_OUTPUT(0), .backward_kernel = tanh_backward_kernel, .flags = TN_OP_WIDE)
