/* y = log(1 + exp(beta x)) / beta; x itself where beta x > threshold
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy sigmoid(beta x), and dy where beta x > threshold
 *
 * Computed as max(z, 0) + log1p(exp(-|z|)) with z = beta x: nothing overflows, and small values
 * stay accurate.
 */
#include "ops/elementwise/rows.h"

#include <math.h>

typedef struct softplus_args {
    double beta, threshold;
} softplus_args;

static bool softplus_shape(tn_op_call *c) {
    const softplus_args *args = c->args;
    if (args->beta == 0.0) {
        return tn_op_fail(c, TN_EVALUE, "beta is 0 (the result is divided by it)");
    }
    return tn__not_nan(c, "beta", args->beta) && tn__not_nan(c, "threshold", args->threshold) &&
           tn__shape_float(c);
}

static void softplus_backward(tn_op_grad *g) {
    const softplus_args *args = g->args;
    tn_tensor *z = tn_mul_scalar(tn_op_saved_input(g, 0), args->beta), *dy = g->dout[0];
    tn_tensor *slope = tn_mul(dy, tn_sigmoid(z));
    tn_op_give(g, 0, tn_where(tn_gt(z, tn__constant(z, args->threshold)), dy, slope));
}

TN_UNARY_K2(softplus, TN_SOFTPLUS_K, TN_SOFTPLUS_SLOPE_K, beta, threshold,
            "* beta=1, threshold=20; {1.5:9} * beta=3, threshold=4; "
            "{-60:-10} * beta=1, threshold=20; {15:60} * beta=1, threshold=inf",
            .flags = TN_OP_WIDE)

tn_tensor *tn_softplus(tn_tensor *x, double beta, double threshold) {
    return tn_apply1(&tn__op_softplus, &(softplus_args){beta, threshold}, x);
}

tn_tensor *tn_logsigmoid(tn_tensor *x) {
    return tn_neg(tn_softplus(tn_neg(x), 1.0, INFINITY));
}
