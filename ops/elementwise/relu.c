/* y = max(x, 0); NaN stays
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy where x > 0, else 0
 *
 * y > 0 where x > 0, so y is saved: the next operation usually keeps it anyway.
 */
#include "ops/elementwise/rows.h"

static tn_status relu_backward_kernel(const tn_op_back *b) {
    return tn__binary_back(b, TN_RELU_GRAD, b->y[0]);
}

static void relu_backward(tn_op_grad *g) {
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_op_give(g, 0, tn_where(tn_gt(y, tn__constant(y, 0.0)), dy, tn__constant(dy, 0.0)));
}

/* Both sides of the kink at 0, near it too. */
TN_UNARY(relu, TN_RELU, float, "{0.1:3} *; {-3:3} *; [4]=(-1e-2, 1e-2, -100, 100)",
         .saves = TN_SAVES_OUTPUT(0), .backward_kernel = relu_backward_kernel)
