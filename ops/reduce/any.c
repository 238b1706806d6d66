/* y = whether any element is true; false for no elements
 *
 *     x: any shape, bool       y: 0-dimensional, bool; no gradient
 */
#include "ops/reduce/reduce.h"

static tn_status any_forward(const tn_op_call *c) {
    tn_desc y = tn__reduce_desc(c, tn__reduce_kept(c->in[0]->dims, ~0u));
    return c->kernels->reduce(c->ctx, TN_ANY, &y, c->x[0]);
}

const char tn__any_samples[] =
    "{bool} [5]; [3, 4]; []; [0]; [5, 67]; {bool 0:1} [3]; {bool 1:2} [3]";

const tn_op tn__op_any = {
    .name = "any",
    .inputs = {"x"},
    .shapes = "bool: ... -> bool:",
    .forward = any_forward,
    .samples = tn__any_samples,
};

tn_tensor *tn_any(tn_tensor *x) {
    return tn_apply1(&tn__op_any, NULL, x);
}
