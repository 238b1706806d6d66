/* y = x tanh(softplus(x)) (Misra 2019, arXiv:1908.08681)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy (t + x s (1 - t²)), t = tanh(softplus(x)), s = sigmoid(x)
 */
#include "ops/elementwise/rows.h"

static void mish_backward(tn_op_grad *g) {
    tn_tensor *x = tn_op_saved_input(g, 0), *s = tn_sigmoid(x);
    tn_tensor *t = tn_tanh(tn_softplus(x, 1.0, 20.0));
    tn_tensor *bend = tn_mul(tn_mul(x, s), tn_rsub_scalar(tn_square(t), 1.0));
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_add(t, bend)));
}

static tn_status mish_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_MISH_GRAD, b->x[0]);
}

TN_UNARY(mish, TN_MISH, float, "*; [5]=(-100, 100, -15, 15, 0)", .saves = TN_SAVES_INPUT(0),
         .backward_kernel = mish_backward_kernel, .flags = TN_OP_WIDE)
