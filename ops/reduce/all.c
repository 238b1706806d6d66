/* y = whether every element is true; true for no elements
 *
 *     x: any shape, bool       y: 0-dimensional, bool; no gradient
 */
#include "ops/reduce/reduce.h"

static tn_status all_forward(const tn_op_call *c) {
    tn_desc y = tn__reduce_desc(c, tn__reduce_kept(c->in[0]->dims, ~0u));
    return c->kernels->reduce(c->ctx, TN_ALL, &y, c->x[0]);
}

const tn_op tn__op_all = {
    .name = "all",
    .inputs = {"x"},
    .shapes = "bool: ... -> bool:",
    .forward = all_forward,
    .samples = tn__any_samples,
};

tn_tensor *tn_all(tn_tensor *x) {
    return tn_apply1(&tn__op_all, NULL, x);
}
