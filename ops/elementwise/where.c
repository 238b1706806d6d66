/* y = c ? a : b
 *
 *     c: bool; a, b: same dtype, any; the three shapes broadcast
 *     y: the common shape, a's dtype
 *     da = dy where c, else 0        db = 0 where c, else dy
 */
#include "ops/op.h"

static bool where_shape(tn_op_call *c) {
    const tn_tensor *condition = c->in[0], *a = c->in[1], *b = c->in[2];
    if (condition->dtype != TN_BOOL) {
        return tn_op_fail(c, TN_EDTYPE, "condition is %s (bool is needed)",
                          tn_dtype_name(condition->dtype));
    }
    if (a->dtype != b->dtype) {
        return tn_op_fail(c, TN_EDTYPE, "a is %s but b is %s (cast one of them)",
                          tn_dtype_name(a->dtype), tn_dtype_name(b->dtype));
    }
    tn_dims dims;
    if (!tn_dims_broadcast(a->dims, b->dims, &dims) ||
        !tn_dims_broadcast(dims, condition->dims, &dims)) {
        return tn_op_fail(c, TN_ESHAPE,
                          "condition is %s, a is %s and b is %s (they do not broadcast)",
                          tn_shape_text(condition), tn_shape_text(a), tn_shape_text(b));
    }
    return tn_op_out(c, dims, a->dtype);
}

static tn_status where_forward(const tn_op_call *c) {
    tn_desc x[3];
    for (int i = 0; i < 3; i++) {
        x[i] = tn_desc_expand(c->x[i], c->y[0]);
    }
    return c->kernels->where(c->ctx, c->y[0], &x[0], &x[1], &x[2]);
}

static void where_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0], *condition = tn_op_saved_input(g, 0), *zero = tn__constant(dy, 0.0);
    if (g->wants[1]) { tn_op_give(g, 1, tn_where(condition, dy, zero)); }
    if (g->wants[2]) { tn_op_give(g, 2, tn_where(condition, zero, dy)); }
}

const tn_op tn__op_where = {
    .name = "where",
    .inputs = {"condition", "a", "b"},
    .saves = TN_SAVES_INPUT(0),
    .shape = where_shape,
    .forward = where_forward,
    .backward = where_backward,
    .samples = "{bool, -3:3} [3, 4] [3, 4] [3, 4]; [4] [3, 1] []; [3, 4] [4] [3, 1]; [] [5] [5]; "
               "[] [] []; [0] [1] [0]; [2, 1, 1] [3, 1] [4]; [5, 67] [5, 67] [67]",
};

tn_tensor *tn_where(tn_tensor *condition, tn_tensor *a, tn_tensor *b) {
    return tn_apply3(&tn__op_where, NULL, condition, a, b);
}
