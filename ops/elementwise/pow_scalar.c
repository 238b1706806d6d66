/* y = x ^ k; NaN for x < 0 and a k that is not whole
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy · k · x ^ (k - 1); 0 for k = 0, as in PyTorch
 */
#include "ops/elementwise/rows.h"

static void pow_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_tensor *dy = g->dout[0];
    if (k == 0.0) {
        tn_op_give(g, 0, tn_zeros_like(dy));
        return;
    }
    tn_op_give(g, 0, tn_mul(dy, tn_mul_scalar(tn_pow_scalar(tn_op_saved_input(g, 0), k - 1.0), k)));
}

TN_UNARY_K(pow_scalar, TN_POW_K, float,
           "* k=2.0; {-2:2} * k=3.0; {0.2:3} * k=0.5; {0.5:3} * k=-1.5; {-3:3} * k=1.0; * k=0.0; "
           "{-3:-0.5} * k=-2.0",
           .saves = TN_SAVES_INPUT(0), .flags = TN_OP_WIDE)
