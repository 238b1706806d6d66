/* y = x where x > 0, else slope x (Maas, Hannun, Ng 2013)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = dy where x > 0, else slope dy
 */
#include "ops/op.h"

static bool leaky_relu_shape(tn_op_call *c) {
    return tn__not_nan(c, "slope", ((const tn__scalar_args *)c->args)->k) && tn__shape_float(c);
}

static tn_status leaky_relu_forward(const tn_op_call *c) {
    return tn__unary_k(c, TN_LEAKY_RELU_K);
}

static void leaky_relu_backward(tn_op_grad *g) {
    double slope = ((const tn__scalar_args *)g->args)->k;
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = g->dout[0];
    tn_op_give(g, 0, tn_where(tn_gt(x, tn__constant(x, 0.0)), dy, tn_mul_scalar(dy, slope)));
}

static tn_status leaky_relu_backward_kernel(const tn_op_back *b) {
    return tn__slope_back(b, TN_LEAKY_RELU_SLOPE_K, ((const tn__scalar_args *)b->args)->k, 0.0);
}

const tn_op tn__op_leaky_relu = {
    .name = "leaky_relu",
    .inputs = {"x"},
    .args_size = sizeof(tn__scalar_args),
    .fields = {TN_FIELD(tn__scalar_args, k)},
    .saves = TN_SAVES_INPUT(0),
    .shape = leaky_relu_shape,
    .forward = leaky_relu_forward,
    .backward = leaky_relu_backward,
    .backward_kernel = leaky_relu_backward_kernel,
    /* Both sides of the kink at 0; a slope that does not keep the sign. */
    .samples = "* k=0.01; {-3:-0.1} * k=0.2; {-3:3} * k=-0.5",
};

tn_tensor *tn_leaky_relu(tn_tensor *x, double slope) {
    return tn_apply1(&tn__op_leaky_relu, &(tn__scalar_args){slope}, x);
}
