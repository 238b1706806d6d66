/* y = scale x where x > 0, else scale alpha (exp(x) - 1)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = scale dy where x > 0, else scale alpha exp(x) dy
 *
 * elu (Clevert et al. 2015, arXiv:1511.07289) has scale 1; selu (Klambauer et al. 2017,
 * arXiv:1706.02515) the two constants that keep mean 0 and variance 1.
 */
#include "ops/elementwise/rows.h"

#define SELU_ALPHA 1.6732632423543772848170429916717
#define SELU_SCALE 1.0507009873554804934193349852946

typedef struct elu_args {
    double alpha, scale;
} elu_args;

static bool elu_shape(tn_op_call *c) {
    return tn__not_nan(c, "alpha", ((const elu_args *)c->args)->alpha) && tn__shape_float(c);
}

/* exp only sees values that are not positive: infinity times a gradient of 0 would be NaN. */
static void elu_backward(tn_op_grad *g) {
    const elu_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = tn_mul_scalar(g->dout[0], args->scale);
    tn_tensor *positive = tn_gt(x, tn__constant(x, 0.0));
    tn_tensor *bend = tn_mul_scalar(tn_exp(tn_masked_fill(x, positive, 0.0)), args->alpha);
    tn_op_give(g, 0, tn_where(positive, dy, tn_mul(dy, bend)));
}

TN_UNARY_K2(elu, TN_ELU_K, TN_ELU_SLOPE_K, alpha, scale,
            "* alpha=1.0; {-3:-0.1} * alpha=0.5; {80:100} * alpha=1.0; {-3:3} * "
            "alpha=1.6732632423543772848170429916717, scale=1.0507009873554804934193349852946",
            .flags = TN_OP_WIDE, .sample_args = &(const elu_args){.scale = 1.0})

tn_tensor *tn_elu(tn_tensor *x, double alpha) {
    return tn_apply1(&tn__op_elu, &(elu_args){alpha, 1.0}, x);
}

tn_tensor *tn_selu(tn_tensor *x) {
    return tn_apply1(&tn__op_elu, &(elu_args){SELU_ALPHA, SELU_SCALE}, x);
}
