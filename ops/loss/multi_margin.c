/* multi_margin(x, label) = 1 / C sum over c != label of max(0, margin - x[label] + x[c])^p, times
 * weight[label] (p is 1 or 2)
 *
 *     x: (…, C), f32 f64 bf16 f16; labels: (…), i64 or i32; weight: absent, or (C)
 *     y: 0-dimensional, or (…) with TN_NONE
 */
#include "ops/loss/loss.h"

#include "ops/dims.h"

static bool multi_margin_shape(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    if (args->k != 1.0 && args->k != 2.0) {
        return tn_op_fail(c, TN_EVALUE, "p is %g (1 or 2)", args->k);
    }
    return tn__not_nan(c, "margin", args->margin) &&
           tn__loss_labels(c, args->how, tn_dtype_of(c->in[0]));
}

static tn_tensor *multi_margin_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *x = c->in[0], *label = c->in[1], *weight = tn__optional(c, 2);
    int last = tn_ndim(x) - 1;
    int64_t classes = tn_size(x, last);
    tn_tensor *of_label = tn_gather(x, last, tn_unsqueeze(label, last));
    tn_tensor *lack = tn_relu(tn_add_scalar(tn_sub(x, of_label), args->margin));
    tn_tensor *each = tn__arange(tn_device_of(x), 0, (double)classes, 1, tn_dtype_of(label));
    tn_tensor *own = tn_eq(tn_unsqueeze(label, last), each);
    lack = tn_masked_fill(args->k == 2.0 ? tn_square(lack) : lack, own, 0.0);
    tn_tensor *loss = tn_div_scalar(tn_sum(lack, TN_DIMS(last), false), (double)classes);
    if (weight) { loss = tn_mul(loss, tn__loss_weights(weight, label, x)); }
    return tn__loss_reduced(loss, args->how);
}

const tn_op tn__op_multi_margin = {
    .name = "multi_margin",
    .inputs = {"x", "labels", "weight"},
    .args_size = sizeof(tn__loss_args),
    .fields = {TN__REDUCTION(tn__loss_args, how), TN_FIELD_AS("p", tn__loss_args, k),
               TN_FIELD(tn__loss_args, margin)},
    .optional = 1u << 2,
    .shape = multi_margin_shape,
    .compose = multi_margin_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-1:1, -1:1, 0.5:2} [6, 4] [6]<4 - reduction='mean'; "
               "[6, 4] [6]<4 - reduction='sum', p=2, margin=0.7; "
               "[6, 4] [6]<4 - reduction='none', margin=0.3; [6, 4] [6]<4 [4] reduction='mean'; "
               "[6, 4] [6]<4 [4] reduction='sum', p=2, margin=0.7; "
               "[6, 4] [6]<4 [4] reduction='none', margin=0.3",
    .sample_args = &(const tn__loss_args){.k = 1.0, .margin = 1.0},
};

tn_tensor *tn_multi_margin(tn_tensor *x, tn_tensor *labels, int p, double margin, tn_tensor *weight,
                           tn_reduction how) {
    tn__loss_args args = {how, p, margin};
    return tn_apply3(&tn__op_multi_margin, &args, x, labels, weight);
}
