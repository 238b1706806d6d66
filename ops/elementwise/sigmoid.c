/* y = 1 / (1 + exp(-x))
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · y (1 - y)
 */
#include "ops/elementwise/rows.h"

static tn_status sigmoid_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_SIGMOID_GRAD, b->y[0]);
}

static void sigmoid_backward(tn_op_grad *g) {
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_op_give(g, 0, tn_mul(dy, tn_mul(y, tn_rsub_scalar(y, 1.0))));
}

/* In the tails exp must not overflow into NaN. */
TN_UNARY(sigmoid, TN_SIGMOID, float, "{-4:4} *; [6]=(0, -0, 90, -90, -300, 300)",
         .saves = TN_SAVES_OUTPUT(0), .backward_kernel = sigmoid_backward_kernel,
         .flags = TN_OP_WIDE)
