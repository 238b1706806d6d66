/* y = min(max(x, low), high); NaN stays
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy where low < x < high, else 0
 *
 * clamp, except for the gradient at the bounds. relu6 and hardsigmoid are built on it.
 */
#include "ops/elementwise/rows.h"

typedef struct hardtanh_args {
    double low, high;
} hardtanh_args;

static bool hardtanh_shape(tn_op_call *c) {
    const hardtanh_args *args = c->args;
    if (!(args->low <= args->high)) {
        return tn_op_fail(c, TN_EVALUE, "low is %g but high is %g", args->low, args->high);
    }
    return tn__shape_float(c);
}

static void hardtanh_backward(tn_op_grad *g) {
    const hardtanh_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = g->dout[0], *zero = tn__constant(dy, 0.0);
    tn_tensor *below = tn_where(tn_lt(x, tn__constant(x, args->high)), dy, zero);
    tn_op_give(g, 0, tn_where(tn_gt(x, tn__constant(x, args->low)), below, zero));
}

TN_UNARY_K2(hardtanh, TN_CLAMP_K, TN_HARDTANH_SLOPE_K, low, high,
            "* low=-1.0, high=1.0; {-9:9} * low=0.0, high=6.0; {-3:3} * low=-2.5, high=0.25")

tn_tensor *tn_hardtanh(tn_tensor *x, double low, double high) {
    return tn_apply1(&tn__op_hardtanh, &(hardtanh_args){low, high}, x);
}

tn_tensor *tn_relu6(tn_tensor *x) {
    return tn_hardtanh(x, 0.0, 6.0);
}
