/* margin_ranking(a, b, y) = max(0, margin - y (a - b)): for y = 1 a should be above b, for -1 below
 *
 *     a, b and y: any shape, the same; f32 f64 bf16 f16
 *     result: 0-dimensional, or a's shape with TN_NONE
 */
#include "ops/loss/loss.h"

static bool margin_ranking_shape(tn_op_call *c) {
    if (!tn_dims_equal(tn_shape(c->in[0]), tn_shape(c->in[2]))) {
        return tn_op_fail(c, TN_ESHAPE, "a is %s but y is %s (they must be equal)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[2]));
    }
    return tn__not_nan(c, "margin", ((const tn__loss_args *)c->args)->margin) && tn__loss_shape(c);
}

static tn_tensor *margin_ranking_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *lead = tn_mul(c->in[2], tn_sub(c->in[0], c->in[1]));
    return tn__loss_reduced(tn_relu(tn_rsub_scalar(lead, args->margin)), args->how);
}

const tn_op tn__op_margin_ranking = {
    .name = "margin_ranking",
    .inputs = {"a", "b", "y"},
    .args_size = sizeof(tn__loss_args),
    .fields = {TN__REDUCTION(tn__loss_args, how), TN_FIELD(tn__loss_args, margin)},
    .shape = margin_ranking_shape,
    .compose = margin_ranking_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-1:1} [2, 3] [2, 3] [2, 3]=(1, -1, -1, 1, 1, -1) reduction='mean'; "
               "[2, 3] [2, 3] [2, 3]=(1, -1, -1, 1, 1, -1) reduction='sum', margin=0.5; "
               "[2, 3] [2, 3] [2, 3]=(1, -1, -1, 1, 1, -1) reduction='none', margin=-0.1",
};

tn_tensor *tn_margin_ranking(tn_tensor *a, tn_tensor *b, tn_tensor *y, double margin,
                             tn_reduction how) {
    tn__loss_args args = {.how = how, .margin = margin};
    return tn_apply3(&tn__op_margin_ranking, &args, a, b, y);
}
