/* softmax(x) = exp(x - max x) / sum exp(x - max x), over one dimension
 *
 *     x: any shape, f32 f64 bf16 f16       y: as x
 *     dx = y (dy - sum(y dy))
 *
 * The kernels work over the last dimension of a descriptor, so any other is exchanged with it: no
 * copy. Backward reads y alone, x may die. A row of -inf gives NaN.
 */
#include "ops/nn/softmax.h"

bool tn__softmax_shape(tn_op_call *c) {
    const tn__softmax_args *args = c->args;
    return tn_op_float(c, 0) && tn__dim_of_any(c->in[0], args->dim, c->op->name) >= 0 &&
           tn_op_out_like(c, 0);
}

/* The largest element only keeps exp from overflowing; the result does not depend on it, so no
 * gradient flows there. */
static tn_tensor *softmax_compose(tn_op_call *c) {
    const tn__softmax_args *args = c->args;
    if (tn_count(c->in[0]) == 0) {
        return tn_exp(c->in[0]);
    }
    tn_tensor *x = c->in[0];
    tn_dims dim = TN_DIMS(args->dim);
    tn_tensor *e = tn_exp(tn_sub(x, tn_max(tn_detach(x), dim, true)));
    return tn_div(e, tn_sum(e, dim, true));
}

static tn_status softmax_forward(tn_op_call *c) {
    const tn__softmax_args *args = c->args;
    tn_desc x = tn__desc_last(&c->x[0], args->dim), y = tn__desc_last(&c->y[0], args->dim);
    return c->kernels->softmax(c->ctx, &y, &x, false);
}

static void softmax_backward(tn_op_grad *g) {
    const tn__softmax_args *args = g->args;
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_tensor *inner = tn_sum(tn_mul(y, dy), TN_DIMS(args->dim), true);
    tn_op_give(g, 0, tn_mul(y, tn_sub(dy, inner)));
}

static tn_status softmax_backward_kernel(const tn_op_back *b) {
    const tn__softmax_args *args = b->args;
    tn_desc dx = tn__desc_last(b->dx[0], args->dim), y = tn__desc_last(b->y[0], args->dim),
            dy = tn__desc_last(b->dy[0], args->dim);
    return b->kernels->softmax_backward(b->ctx, &dx, &y, &dy, false);
}

/* Each place for the dimension, rows of size 0 and 1, one longer than a vector register, and
 * values whose exponentials overflow. */
void tn__softmax_samples(tn_op_samples *s) {
    static const tn__softmax_args first = {0}, second = {1}, last = {-1};
    static const double huge[] = {1000.0, 992.0, -1000.0, 88.0, 89.0, 90.0};
    const tn_sample samples[] = {
        {.text = "dim=-1",
         .args = &last,
         .inputs = 1,
         .in = {tn_spec_real(TN_DIMS(3, 5), -2.0, 2.0)}},
        {.text = "dim=0",
         .args = &first,
         .inputs = 1,
         .in = {tn_spec_real(TN_DIMS(3, 5), -2.0, 2.0)}},
        {.text = "dim=1",
         .args = &second,
         .inputs = 1,
         .in = {tn_spec_real(TN_DIMS(2, 3, 4), -2.0, 2.0)}},
        {.text = "dim=0", .args = &first, .inputs = 1, .in = {tn_spec_real(TN_DIMS(7), -2.0, 2.0)}},
        {.text = "dim=-1",
         .args = &last,
         .inputs = 1,
         .in = {tn_spec_real(TN_DIMS(4, 1), -2.0, 2.0)}},
        {.text = "dim=1",
         .args = &second,
         .inputs = 1,
         .in = {tn_spec_real(TN_DIMS(3, 0), -2.0, 2.0)}},
        {.text = "dim=-1",
         .args = &last,
         .inputs = 1,
         .in = {tn_spec_real(TN_DIMS(0, 3), -2.0, 2.0)}},
        {.text = "dim=-1",
         .args = &last,
         .inputs = 1,
         .in = {tn_spec_real(TN_DIMS(2, 67), -2.0, 2.0)}},
        {.text = "dim=-1", .args = &last, .inputs = 1, .in = {tn_spec_values(TN_DIMS(2, 3), huge)}},
        {.text = "dim=0", .args = &first, .inputs = 1, .in = {tn_spec_real(TN_DIMS(), -2.0, 2.0)}},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        tn_sample_add(s, &samples[i]);
    }
}

const tn_op tn__op_softmax = {
    .name = "softmax",
    .inputs = {"x"},
    .args_size = sizeof(tn__softmax_args),
    .fields = {TN_FIELD(tn__softmax_args, dim)},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = tn__softmax_shape,
    .forward = softmax_forward,
    .needs = TN_KERNEL(softmax),
    .compose = softmax_compose,
    .backward = softmax_backward,
    .backward_kernel = softmax_backward_kernel,
    .backward_needs = TN_KERNEL(softmax_backward),
    .wide = true,
    .samples = tn__softmax_samples,
};

tn_tensor *tn_softmax(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_softmax, &(tn__softmax_args){dim}, x);
}
