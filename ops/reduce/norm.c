/* y = (sum over dims of |x|^p)^(1 / p); the largest |x| for p = inf, the smallest for -inf, and the
 * number that are not 0 for p = 0
 *
 *     x: any shape, f32 f64 bf16 f16       y: x's shape without dims (or 1 there)
 *     dx = dy sign(x) |x|^(p - 1) / y^(p - 1), and 0 where x or y is 0; for inf and -inf equal
 *     elements share dy evenly
 */
#include "ops/reduce/reduce.h"

#include <math.h>

typedef struct norm_args {
    tn__reduce_args over;
    double p;
} norm_args;

static bool norm_shape(tn_op_call *c) {
    double p = ((const norm_args *)c->args)->p;
    if (isnan(p)) {
        return tn_op_fail(c, TN_EVALUE, "p is NaN (a number, or an infinity, is needed)");
    }
    if (!tn__needs_float(c) || (isinf(p) && !tn__reduce_nonempty(c))) { return false; }
    return tn__reduce_out(c, c->in[0]->dtype);
}

/* x^p for x >= 0. Where x is 0 it is a constant: the slope may be infinite there. */
static tn_tensor *norm_power(tn_tensor *x, double p) {
    tn_tensor *zero = tn_eq(x, tn__constant(x, 0.0));
    return tn_masked_fill(tn_pow_scalar(tn_masked_fill(x, zero, 1.0), p), zero,
                          p > 0 ? 0 : INFINITY);
}

static tn_tensor *norm_compose(tn_op_call *c) {
    const norm_args *args = c->args;
    tn_dims dims = args->over.dims;
    bool keepdim = args->over.keepdim;
    double p = args->p;
    tn_tensor *x = c->in[0];
    if (p == 2.0) { return tn__sqrt_or_zero(tn_sum(tn_square(x), dims, keepdim)); }
    if (p == 0.0) {
        tn_tensor *counts = tn_ne(x, tn__constant(x, 0.0)); /* NaN too */
        return tn_sum(tn_masked_fill(tn_sign(x), counts, 1.0), dims, keepdim);
    }
    tn_tensor *size = tn_abs(x);
    if (isinf(p)) { return p > 0 ? tn_max(size, dims, keepdim) : tn_min(size, dims, keepdim); }
    return p == 1.0 ? tn_sum(size, dims, keepdim)
                    : norm_power(tn_sum(norm_power(size, p), dims, keepdim), 1.0 / p);
}

const tn_op tn__op_norm = {
    .name = "norm",
    .inputs = {"x"},
    .args_size = sizeof(norm_args),
    .fields = {TN__REDUCE_FIELDS, TN_FIELD_AS("ord", norm_args, p)},
    .shape = norm_shape,
    .compose = norm_compose,
    .flags = TN_OP_WIDE,
    /* Some orders, and zeros: as single elements, and as all elements. */
    .samples = "{distinct 0.3:3} "
               "[2, 3] dim=[1]; [2, 3] ord=1, dim=[1]; [2, 3] ord=3.5, dim=[0], keepdim=True; "
               "[2, 3] ord=0, dim=[1]; [2, 3] ord=inf, dim=[1]; [2, 3] ord=-inf, dim=[1]; "
               "[2, 3, 4] dim=[0, 2]; [2, 3, 4] ord=0.5, dim=[-1, 0], keepdim=True; [7]; "
               "[0, 3] dim=[1]; [3, 0] dim=[1]; [1] ord=3, dim=[0]; [3, 300] dim=[1]; "
               "{once} [2, 3]=(0, 1.5, -2, 0, 0, 0) dim=[1]; "
               "[2, 3]=(0, 1.5, -2, 0, 0, 0) ord=3.5, dim=[0], keepdim=True",
    .sample_args = &(const norm_args){.p = 2.0},
};

tn_tensor *tn_norm(tn_tensor *x, double p, tn_dims dims, bool keepdim) {
    norm_args args = {{dims, keepdim}, p};
    return tn_apply1(&tn__op_norm, &args, x);
}
