/* y = whether any element is true; false for no elements
 *
 *     x: any shape, bool       y: 0-dimensional, bool; no gradient
 */
#include "ops/reduce/reduce.h"

bool tn__any_shape(tn_op_call *c) {
    if (c->in[0]->dtype != TN_BOOL) {
        return tn_op_fail(c, TN_EDTYPE, "x is %s (bool is needed)", tn_dtype_name(c->in[0]->dtype));
    }
    return tn_op_out(c, TN_DIMS(), TN_BOOL);
}

static tn_status any_forward(const tn_op_call *c) {
    tn_desc y = tn__reduce_desc(c, tn__reduce_kept(c->in[0]->dims, ~0u));
    return c->kernels->reduce(c->ctx, TN_ANY, &y, c->x[0]);
}

const char tn__any_samples[] =
    "{bool} [5]; [3, 4]; []; [0]; [5, 67]; {bool 0:1} [3]; {bool 1:2} [3]";

const tn_op tn__op_any = {
    .name = "any",
    .inputs = {"x"},
    .shape = tn__any_shape,
    .forward = any_forward,
    .samples = tn__any_samples,
};

tn_tensor *tn_any(tn_tensor *x) {
    return tn_apply1(&tn__op_any, NULL, x);
}
