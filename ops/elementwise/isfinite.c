/* y = whether x is neither NaN nor infinite
 *
 *     x: any shape and dtype       y: bool; no gradient
 */
#include "ops/reduce/reduce.h"

#include <math.h>

tn_status tn__compare_infinity(const tn_op_call *c, tn_compare f) {
    tn_tensor *x = c->in[0];
    if (!tn_dtype_is_float(x->dtype) || tn_count(x) == 0) { /* every integer is finite */
        return c->kernels->fill(c->ctx, c->y[0], f == TN_LT);
    }
    tn_desc size = tn__scratch(c->ctx, x->dims, x->dtype),
            limit = tn__scratch(c->ctx, TN_DIMS(), x->dtype);
    tn_status status = size.data && limit.data ? TN_OK : TN_ENOMEM;
    if (status == TN_OK) { status = c->kernels->unary(c->ctx, TN_ABS, &size, c->x[0], 0.0, 0.0); }
    if (status == TN_OK) { status = c->kernels->fill(c->ctx, &limit, INFINITY); }
    if (status == TN_OK) {
        tn_desc spread = tn_desc_expand(&limit, &size);
        status = c->kernels->compare(c->ctx, f, c->y[0], &size, &spread);
    }
    tn__scratch_free(c->ctx, &limit);
    tn__scratch_free(c->ctx, &size);
    return status;
}

static tn_status isfinite_forward(const tn_op_call *c) {
    return tn__compare_infinity(c, TN_LT);
}

const tn_op tn__op_isfinite = {
    .name = "isfinite",
    .inputs = {"x"},
    .shapes = "any: ... -> bool: ...",
    .forward = isfinite_forward,
    .samples = "[7]; [3, 4]; [2, 3, 4]; []; [0]; [2, 0, 3]; [1]; [1, 1]; [5, 67]; "
               "{once} [7]=(0, nan, inf, -inf, 1, 1e+300, -0)",
};

tn_tensor *tn_isfinite(tn_tensor *x) {
    return tn_apply1(&tn__op_isfinite, NULL, x);
}
