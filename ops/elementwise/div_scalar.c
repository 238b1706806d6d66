/* y = x / k
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / k
 *
 * Not x times 1 / k, which differs in the last bit.
 */
#include "ops/elementwise/rows.h"

static void div_scalar_backward(tn_op_grad *g) {
    double k = ((const tn__scalar_args *)g->args)->k;
    tn_op_give(g, 0, tn_div_scalar(g->dout[0], k));
}

TN_UNARY_K(div_scalar, TN_DIV_K, float, "* k=3.0; * k=-0.7")
