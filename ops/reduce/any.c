/* y = whether any element is true, and whether every one is; for no elements false, and true
 *
 *     x: any shape, bool       y: 0-dimensional, bool; no gradient
 */
#include "ops/reduce/reduce.h"

#define TN_TRUTH(op_, kernel_)                                                             \
    static tn_status op_##_forward(const tn_op_call *c) {                                  \
        tn_desc y = tn__reduce_desc(c, tn__reduce_kept(c->in[0]->dims, ~0u));              \
        return c->kernels->reduce(c->ctx, kernel_, &y, c->x[0]);                           \
    }                                                                                      \
    const tn_op tn__op_##op_ = {                                                           \
        .name = #op_,                                                                      \
        .inputs = {"x"},                                                                   \
        .shapes = "bool: ... -> bool:",                                                    \
        .forward = op_##_forward,                                                          \
        .samples = "{bool} [5]; [3, 4]; []; [0]; [5, 67]; {bool 0:1} [3]; {bool 1:2} [3]", \
    };                                                                                     \
    tn_tensor *tn_##op_(tn_tensor *x) {                                                    \
        return tn_apply1(&tn__op_##op_, NULL, x);                                          \
    }

TN_TRUTH(any, TN_ANY)
TN_TRUTH(all, TN_ALL)
