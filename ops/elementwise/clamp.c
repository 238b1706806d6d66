/* y = min(max(x, low), high): low where x < low, high where x > high; NaN stays
 *
 *     x: any shape, all but bool       y: like x
 *     low or high may be infinite; low > high gives high everywhere
 *     dx = dy where low <= x <= high, else 0
 */
#include "ops/op.h"

#include <math.h>

typedef struct clamp_args {
    double low, high;
} clamp_args;

/* The largest double below 2^63 represents i64's maximum. */
void tn__clamp_bounds(tn_dtype dtype, double *low, double *high) {
    double min = -0x1p63, max = 0x1.fffffffffffffp62;
    if (dtype == TN_U8) {
        min = 0.0, max = 255.0;
    } else if (dtype == TN_I8) {
        min = -128.0, max = 127.0;
    } else if (dtype == TN_I32) {
        min = -0x1p31, max = 0x1p31 - 1.0;
    }
    if (!tn_dtype_is_float(dtype)) {
        *low = fmin(fmax(ceil(*low), min), max);
        *high = fmin(fmax(floor(*high), min), max);
    }
}

static bool clamp_shape(tn_op_call *c) {
    const clamp_args *args = c->args;
    if (isnan(args->low) || isnan(args->high)) {
        return tn_op_fail(c, TN_EVALUE, "low is %g and high is %g (numbers are needed)", args->low,
                          args->high);
    }
    return tn__shape_number(c);
}

static tn_status clamp_forward(const tn_op_call *c) {
    clamp_args k = *(const clamp_args *)c->args;
    tn__clamp_bounds(c->x[0]->dtype, &k.low, &k.high);
    return c->kernels->unary(c->ctx, TN_CLAMP_K, c->y[0], c->x[0], k.low, k.high);
}

/* x is within the bounds where clamping does not change it. */
static void clamp_backward(tn_op_grad *g) {
    const clamp_args *args = g->args;
    tn_tensor *dy = g->dout[0], *x = tn_op_saved_input(g, 0);
    tn_op_give(g, 0,
               tn_where(tn_eq(x, tn_clamp(x, args->low, args->high)), dy, tn__constant(dy, 0.0)));
}

const tn_op tn__op_clamp = {
    .name = "clamp",
    .inputs = {"x"},
    .args_size = sizeof(clamp_args),
    .fields = {TN_FIELD(clamp_args, low), TN_FIELD(clamp_args, high)},
    .saves = TN_SAVES_INPUT(0),
    .shape = clamp_shape,
    .forward = clamp_forward,
    .backward = clamp_backward,
    .samples = "* low=-0.75, high=1.25; * low=0.5, high=inf; * low=-inf, high=-0.5",
};

tn_tensor *tn_clamp(tn_tensor *x, double low, double high) {
    return tn_apply1(&tn__op_clamp, &(clamp_args){low, high}, x);
}
