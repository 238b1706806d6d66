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

const tn_op tn__op_cosine_embedding = {
    .name = "cosine_embedding",
    .inputs = {"a", "b", "y"},
    .args_size = sizeof(tn__loss_args),
    .fields = {TN__REDUCTION(tn__loss_args, how), TN_FIELD(tn__loss_args, margin)},
    .shape = cosine_embedding_shape,
    .compose = cosine_embedding_compose,
    .flags = TN_OP_WIDE,
    .samples = "{0.2:2, -1:2} [6, 4] [6, 4] [6]<2 reduction='mean'; "
               "[6, 4] [6, 4] [6]<2 reduction='sum', margin=0.3; "
               "[6, 4] [6, 4] [6]<2 reduction='none', margin=-0.4; [5] [5] []<2 reduction='mean'; "
               "[5] [5] []<2 reduction='sum', margin=0.3; "
               "[5] [5] []<2 reduction='none', margin=-0.4",
};

tn_tensor *tn_cosine_embedding(tn_tensor *a, tn_tensor *b, tn_tensor *y, double margin,
                               tn_reduction how) {
    tn__loss_args args = {.how = how, .margin = margin};
    return tn_apply3(&tn__op_cosine_embedding, &args, a, b, y);
}
