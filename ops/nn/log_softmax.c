/* log_softmax(x) = x - max x - log(sum exp(x - max x)), over one dimension
 *
 *     x: any shape, f32 f64 bf16 f16       y: as x
 *     dx = dy - exp(y) sum(dy)
 *
 * The logarithm of softmax without its underflow. See softmax.c: the same kernels,
 * told to take the logarithm.
 */
#include "ops/dims.h"

typedef struct log_softmax_args {
    int dim;
} log_softmax_args;

static bool log_softmax_shape(tn_op_call *c) {
    const log_softmax_args *args = c->args;
    return tn_op_float(c, 0) && tn__dim_of_any(c->in[0], args->dim, c->op->name) >= 0 &&
           tn_op_out_like(c, 0);
}

/* As in softmax: no gradient flows through the largest element. */
static tn_tensor *log_softmax_compose(tn_op_call *c) {
    const log_softmax_args *args = c->args;
    if (tn_count(c->in[0]) == 0) {
        return tn_exp(c->in[0]);
    }
    tn_tensor *x = c->in[0];
    tn_dims dim = TN_DIMS(args->dim);
    tn_tensor *low = tn_sub(x, tn_max(tn_detach(x), dim, true));
    return tn_sub(low, tn_log(tn_sum(tn_exp(low), dim, true)));
}

static tn_status log_softmax_forward(tn_op_call *c) {
    const log_softmax_args *args = c->args;
    tn_desc x = tn__desc_last(&c->x[0], args->dim), y = tn__desc_last(&c->y[0], args->dim);
    return c->kernels->softmax(c->ctx, &y, &x, true);
}

static void log_softmax_backward(tn_op_grad *g) {
    const log_softmax_args *args = g->args;
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_tensor *total = tn_sum(dy, TN_DIMS(args->dim), true);
    tn_op_give(g, 0, tn_sub(dy, tn_mul(tn_exp(y), total)));
}

static tn_status log_softmax_backward_kernel(const tn_op_back *b) {
    const log_softmax_args *args = b->args;
    tn_desc dx = tn__desc_last(b->dx[0], args->dim), y = tn__desc_last(b->y[0], args->dim),
            dy = tn__desc_last(b->dy[0], args->dim);
    return b->kernels->softmax_backward(b->ctx, &dx, &y, &dy, true);
}

/* Each place for the dimension, rows of size 0 and 1, one longer than a vector register, and
 * values whose exponentials overflow. */
static void log_softmax_samples(tn_op_samples *s) {
    static const log_softmax_args first = {0}, second = {1}, last = {-1};
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

const tn_op tn__op_log_softmax = {
    .name = "log_softmax",
    .inputs = {"x"},
    .args_size = sizeof(log_softmax_args),
    .saves = TN_SAVES_OUTPUT(0),
    .shape = log_softmax_shape,
    .forward = log_softmax_forward,
    .needs = TN_KERNEL(softmax),
    .compose = log_softmax_compose,
    .backward = log_softmax_backward,
    .backward_kernel = log_softmax_backward_kernel,
    .backward_needs = TN_KERNEL(softmax_backward),
    .wide = true,
    .samples = log_softmax_samples,
};

tn_tensor *tn_log_softmax(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_log_softmax, &(log_softmax_args){dim}, x);
}
