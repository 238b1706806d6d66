/* cosine_embedding(a, b, y) = 1 - cos(a, b) where y > 0, else max(0, cos(a, b) - margin)
 *
 *     a and b: (…, C), the same; f32 f64 bf16 f16; y: (…), any dtype: 1 for similar pairs, else -1
 *     result: 0-dimensional, or (…) with TN_NONE
 */
#include "ops/loss/loss.h"

#include "ops/dims.h"

static bool cosine_embedding_shape(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_dims a = tn_shape(c->in[0]);
    bool alike = tn_dims_equal(a, tn_shape(c->in[1])) && a.ndim > 0 &&
                 tn_dims_equal(tn__dims_leading(a), tn_shape(c->in[2]));
    if (!tn_op_float(c, 0) || !tn_op_float(c, 1)) { return false; }
    if (tn_dtype_of(c->in[0]) != tn_dtype_of(c->in[1])) {
        return tn_op_fail(c, TN_EDTYPE, "a is %s but b is %s (cast one of them)",
                          tn_dtype_name(tn_dtype_of(c->in[0])),
                          tn_dtype_name(tn_dtype_of(c->in[1])));
    }
    if (!alike) {
        return tn_op_fail(c, TN_ESHAPE, "a is %s, b %s and y %s ((…, C), (…, C) and (…))",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]),
                          tn_shape_text(c->in[2]));
    }
    return tn__not_nan(c, "margin", args->margin) &&
           tn__loss_out(c, args->how, tn__dims_leading(a));
}

static tn_tensor *squared_length(tn_tensor *a) {
    return tn_add_scalar(tn_sum(tn_square(a), TN_DIMS(-1), false), 1e-12);
}

/* Not tn_cosine_similarity: PyTorch's loss lengthens both vectors a little, so that its gradient is
 * finite, and not 0, at a vector of zeros. */
static tn_tensor *cosine_of(tn_tensor *a, tn_tensor *b) {
    tn_tensor *product = tn_sum(tn_mul(a, b), TN_DIMS(-1), false);
    return tn_div(product, tn_sqrt(tn_mul(squared_length(a), squared_length(b))));
}

static tn_tensor *cosine_embedding_compose(tn_op_call *c) {
    const tn__loss_args *args = c->args;
    tn_tensor *cosine = cosine_of(c->in[0], c->in[1]), *y = c->in[2];
    tn_tensor *apart = tn_relu(tn_sub_scalar(cosine, args->margin));
    tn_tensor *alike = tn_gt(y, tn__constant(y, 0.0));
    return tn__loss_reduced(tn_where(alike, tn_rsub_scalar(cosine, 1.0), apart), args->how);
}

static void cosine_embedding_samples(tn_op_samples *s) {
    static const tn__loss_args args[] = {
        {.how = TN_MEAN}, {.how = TN_SUM, .margin = 0.3}, {.how = TN_NONE, .margin = -0.4}};
    static const char *const text[] = {"reduction='mean'", "reduction='sum', margin=0.3",
                                       "reduction='none', margin=-0.4"};
    for (int k = 0; k < 6; k++) {
        const tn_sample sample = {
            .text = text[k % 3],
            .args = &args[k % 3],
            .inputs = 3,
            .in = {tn_spec_real(k < 3 ? TN_DIMS(6, 4) : TN_DIMS(5), 0.2, 2.0),
                   tn_spec_real(k < 3 ? TN_DIMS(6, 4) : TN_DIMS(5), -1.0, 2.0),
                   tn_spec_index(k < 3 ? TN_DIMS(6) : TN_DIMS(), 2)},
        };
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_cosine_embedding = {
    .name = "cosine_embedding",
    .inputs = {"a", "b", "y"},
    .args_size = sizeof(tn__loss_args),
    .shape = cosine_embedding_shape,
    .compose = cosine_embedding_compose,
    .flags = TN_OP_WIDE,
    .add_samples = cosine_embedding_samples,
};

tn_tensor *tn_cosine_embedding(tn_tensor *a, tn_tensor *b, tn_tensor *y, double margin,
                               tn_reduction how) {
    tn__loss_args args = {.how = how, .margin = margin};
    return tn_apply3(&tn__op_cosine_embedding, &args, a, b, y);
}
