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

static void margin_ranking_samples(tn_op_samples *s) {
    static const tn__loss_args args[] = {{.how = TN_MEAN, .margin = 0.0},
                                         {.how = TN_SUM, .margin = 0.5},
                                         {.how = TN_NONE, .margin = -0.1}};
    static const char *const text[] = {"reduction='mean'", "reduction='sum', margin=0.5",
                                       "reduction='none', margin=-0.1"};
    static const double sides[] = {1, -1, -1, 1, 1, -1};
    for (int k = 0; k < 3; k++) {
        const tn_sample sample = {
            .text = text[k],
            .args = &args[k],
            .inputs = 3,
            .in = {tn_spec_real(TN_DIMS(2, 3), -1.0, 1.0), tn_spec_real(TN_DIMS(2, 3), -1.0, 1.0),
                   tn_spec_values(TN_DIMS(2, 3), sides)},
        };
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_margin_ranking = {
    .name = "margin_ranking",
    .inputs = {"a", "b", "y"},
    .args_size = sizeof(tn__loss_args),
    .shape = margin_ranking_shape,
    .compose = margin_ranking_compose,
    .flags = TN_OP_WIDE,
    .add_samples = margin_ranking_samples,
};

tn_tensor *tn_margin_ranking(tn_tensor *a, tn_tensor *b, tn_tensor *y, double margin,
                             tn_reduction how) {
    tn__loss_args args = {.how = how, .margin = margin};
    return tn_apply3(&tn__op_margin_ranking, &args, a, b, y);
}
