/* y = min(max(x + 3, 0), 6) / 6 (Howard et al. 2019, arXiv:1905.02244)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy / 6 where -3 < x < 3, else 0
 */
#include "ops/op.h"

static tn_tensor *hardsigmoid_compose(tn_op_call *c) {
    return tn_div_scalar(tn_relu6(tn_add_scalar(c->in[0], 3.0)), 6.0);
}

const tn_op tn__op_hardsigmoid = {
    .name = "hardsigmoid",
    .inputs = {"x"},
    .shape = tn__shape_float,
    .compose = hardsigmoid_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-2.9:2.9} *; {3.1:5} *; {-5:-3.1} *",
};

tn_tensor *tn_hardsigmoid(tn_tensor *x) {
    return tn_apply1(&tn__op_hardsigmoid, NULL, x);
}
