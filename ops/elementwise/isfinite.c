/* y = whether x is NaN, an infinity of either sign, or neither
 *
 *     x: any shape and dtype       y: bool; no gradient
 */
#include "ops/dims.h"

#include <math.h>

/* y = f(|x|, infinity); integers count as finite. */
static tn_status compare_infinity(const tn_op_call *c, tn_compare f) {
    tn_tensor *x = c->in[0];
    if (!tn_dtype_is_float(x->dtype) || tn_count(x) == 0) { /* every integer is finite */
        return c->kernels->fill(c->ctx, c->y[0], f == TN_LT);
    }
    TN__SCRATCH_POOL(scratch, c);
    tn_desc size = tn__scratch(&scratch, x->dims, x->dtype),
            limit = tn__scratch(&scratch, TN_DIMS(), x->dtype),
            spread = tn_desc_expand(&limit, &size);
    if (!size.data || !limit.data) { return TN_ENOMEM; }
    tn_status status = c->kernels->unary(c->ctx, TN_ABS, &size, c->x[0], 0.0, 0.0);
    if (status == TN_OK) { status = c->kernels->fill(c->ctx, &limit, INFINITY); }
    return status == TN_OK ? c->kernels->compare(c->ctx, f, c->y[0], &size, &spread) : status;
}

static tn_status compare_itself(const tn_op_call *c) {
    return c->kernels->compare(c->ctx, TN_NE, c->y[0], c->x[0], c->x[0]);
}

#define TN_IS(op_, run_)                                                     \
    static tn_status op_##_forward(const tn_op_call *c) {                    \
        return run_;                                                         \
    }                                                                        \
    const tn_op tn__op_##op_ = {                                             \
        .name = #op_,                                                        \
        .inputs = {"x"},                                                     \
        .shapes = "any: ... -> bool: ...",                                   \
        .forward = op_##_forward,                                            \
        .samples = "*; {once} [8]=(0, nan, inf, -inf, 1, 1e+300, -nan, -0)", \
    };                                                                       \
    tn_tensor *tn_##op_(tn_tensor *x) {                                      \
        return tn_apply1(&tn__op_##op_, NULL, x);                            \
    }

TN_IS(isnan, compare_itself(c))
TN_IS(isinf, compare_infinity(c, TN_EQ))
TN_IS(isfinite, compare_infinity(c, TN_LT))
