/* y = x in new, contiguous memory
 *
 *     x: any shape and dtype       y: like x
 *     dx = dy
 */
#include "ops/op.h"

static bool copy_shape(tn_op_call *c) {
    return tn_op_out_like(c, 0);
}

static tn_status copy_forward(const tn_op_call *c) {
    return c->kernels->copy(c->ctx, c->y[0], c->x[0]);
}

static void copy_backward(tn_op_grad *g) {
    tn_op_give(g, 0, g->dout[0]);
}

const tn_op tn__op_copy = {
    .name = "copy",
    .inputs = {"x"},
    .shape = copy_shape,
    .forward = copy_forward,
    .backward = copy_backward,
    .samples = "[7]; [3, 4]; [2, 3, 4]; []; [0]; [2, 0, 3]; [1]; [1, 1]; [5, 67]",
};

tn_tensor *tn_copy(tn_tensor *x) {
    return tn_apply1(&tn__op_copy, NULL, x);
}

tn_tensor *tn_contiguous(tn_tensor *x) {
    return tn__usable(x, "contiguous") && tn_is_contiguous(x) ? x : tn_copy(x);
}
