/* cosine_similarity(a, b) = sum a b / (max(|a|, eps) max(|b|, eps)), along one dimension
 *
 *     a and b: shapes that broadcast, same dtype, f32 f64 bf16 f16
 *     y: the common shape without dim
 */
#include "ops/loss/loss.h"

#include "ops/dims.h"

#include <math.h>

typedef struct cosine_args {
    int dim;
    double eps;
} cosine_args;

static bool cosine_similarity_shape(tn_op_call *c) {
    const cosine_args *args = c->args;
    tn_dims common, y = TN_DIMS();
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0)) { return false; }
    if (!tn_dims_broadcast(tn_shape(c->in[0]), tn_shape(c->in[1]), &common) || common.ndim == 0) {
        return tn_op_fail(c, TN_ESHAPE,
                          "a is %s but b is %s (they must broadcast, and have dimensions)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    if (args->dim < -common.ndim || args->dim >= common.ndim) {
        return tn_op_fail(c, TN_EINDEX,
                          "a is %s and b is %s but dim is %d (there are %d dimensions)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]), args->dim, common.ndim);
    }
    if (!tn__eps_fits(c, args->eps)) { return false; }
    for (int i = 0; i < common.ndim; i++) {
        if (i != tn__dim_from_start(args->dim, common.ndim)) { y.size[y.ndim++] = common.size[i]; }
    }
    return tn_op_out(c, y, tn_dtype_of(c->in[0]));
}

static tn_tensor *to_length_one(tn_tensor *x, int dim, double eps) {
    tn_tensor *length = tn__sqrt_or_zero(tn_sum(tn_square(x), TN_DIMS(dim), true));
    return tn_div(x, tn_clamp(length, eps, INFINITY));
}

static tn_tensor *cosine_similarity_compose(tn_op_call *c) {
    const cosine_args *args = c->args;
    tn_tensor *a = c->in[0], *b = c->in[1];
    tn_dims common = {0};
    tn_dims_broadcast(tn_shape(a), tn_shape(b), &common);
    int dim = tn__dim_from_start(args->dim, common.ndim) - common.ndim;
    a = to_length_one(tn_expand(a, common), dim, args->eps);
    b = to_length_one(tn_expand(b, common), dim, args->eps);
    return tn_sum(tn_mul(a, b), TN_DIMS(dim), false);
}

const tn_op tn__op_cosine_similarity = {
    .name = "cosine_similarity",
    .inputs = {"a", "b"},
    .args_size = sizeof(cosine_args),
    .fields = {TN_FIELD(cosine_args, dim), TN_FIELD(cosine_args, eps)},
    .shape = cosine_similarity_shape,
    .compose = cosine_similarity_compose,
    .flags = TN_OP_WIDE,
    .samples = "{0.2:2, -2:2} [7] [7] dim=-1; [3, 4] [3, 4] dim=0; "
               "[2, 1, 5] [4, 5] dim=-1; [2, 3, 4] [2, 3, 4] dim=1, eps=0.5; "
               "[0, 4] [0, 4] dim=-1; [3, 67] [3, 67] dim=-1",
    .sample_args = &(const cosine_args){.eps = 1e-8},
};

tn_tensor *tn_cosine_similarity(tn_tensor *a, tn_tensor *b, int dim, double eps) {
    return tn_apply2(&tn__op_cosine_similarity, &(cosine_args){dim, eps}, a, b);
}
