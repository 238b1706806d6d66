/* y = k / x
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = -dy · (k / x) / x
 *
 * dx divides twice: x² would overflow or underflow earlier.
 */
#include "ops/elementwise/rows.h"

static void rdiv_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_tensor *x = tn_op_saved_input(g, 0);
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_div(tn_rdiv_scalar(x, -k), x)));
}

TN_UNARY_K(rdiv_scalar, TN_RDIV_K, float, "{0.3:3} * k=1.0; {-3:-0.3} * k=-2.5",
           .saves = TN_SAVES_INPUT(0), .flags = TN_OP_WIDE)
