/* log_softmax(x) = x - max x - log(sum exp(x - max x)), over one dimension
 *
 *     x: any shape but 0-dimensional, f32 f64 bf16 f16       y: as x
 *     dx = dy - exp(y) sum(dy)
 *
 * The logarithm of softmax without its underflow. See softmax.c: the same kernels, told to take the
 * logarithm.
 */
#include "ops/rows.h"

typedef struct log_softmax_args {
    int dim;
} log_softmax_args;

static bool log_softmax_shape(tn_op_call *c) {
    const log_softmax_args *args = c->args;
    return tn_op_float(c, 0) && tn__op_dim(c, args->dim) >= 0 && tn_op_out_like(c, 0);
}

/* As in softmax: no gradient flows through the largest element. */
static tn_tensor *log_softmax_compose(const tn_op_call *c) {
    const log_softmax_args *args = c->args;
    if (tn_count(c->in[0]) == 0) {
        return tn_exp(c->in[0]);
    }
    tn_tensor *x = tn__widen(c->in[0]);
    tn_dims dim = TN_DIMS(args->dim);
    tn_tensor *low = tn_sub(x, tn_max(tn_detach(x), dim, true));
    return tn_cast(tn_sub(low, tn_log(tn_sum(tn_exp(low), dim, true))), tn_dtype_of(c->in[0]));
}

static tn_status log_softmax_forward(tn_op_call *c) {
    if (!c->kernels->softmax) {
        return tn__forward_composed(c, log_softmax_compose);
    }
    const log_softmax_args *args = c->args;
    int last = c->x[0].ndim - 1, dim = tn__dim_from_start(args->dim, last + 1);
    tn_desc x = tn_desc_swap(&c->x[0], dim, last), y = tn_desc_swap(&c->y[0], dim, last);
    return c->kernels->softmax(c->ctx, &y, &x, true);
}

static void log_softmax_backward(tn_op_grad *g) {
    const log_softmax_args *args = g->args;
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn__kernels k;
    if (!tn__grad_kernels(g, (tn_tensor *[]){y, dy}, 2, &k)) {
        return;
    }
    if (g->create_graph || !k.table->softmax_backward) {
        tn_tensor *total = tn_sum(dy, TN_DIMS(args->dim), true);
        tn_op_give(g, 0, tn_sub(dy, tn_mul(tn_exp(y), total)));
        return;
    }
    tn_tensor *dx = tn__grad_new(g, true, tn_shape(y), tn_dtype_of(y));
    if (tn_is_inert(dx)) {
        return;
    }
    int last = tn_ndim(y) - 1, dim = tn__dim_from_start(args->dim, last + 1);
    tn_desc from[3] = {tn_desc_of(dx), tn_desc_of(y), tn_desc_of(dy)}, to[3];
    for (int i = 0; i < 3; i++) {
        to[i] = tn_desc_swap(&from[i], dim, last);
    }
    if (tn__kernel_ok(k.table->softmax_backward(k.ctx, &to[0], &to[1], &to[2], true),
                      g->op->name)) {
        tn_op_give(g, 0, dx);
    }
}

/* Each place for the dimension, rows of size 0 and 1, one longer than a vector register, and
 * values whose exponentials overflow. */
static void log_softmax_samples(tn_op_samples *s) {
    static const log_softmax_args first = {0}, second = {1}, last = {-1};
    static const double large[] = {1000.0, 992.0, -1000.0, 88.0, 89.0, 90.0};
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
        {.text = "dim=-1", .args = &last, .inputs = 1, .in = {tn_spec_values(TN_DIMS(2, 3), large)}},
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
    .backward = log_softmax_backward,
    .samples = log_softmax_samples,
};

tn_tensor *tn_log_softmax(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_log_softmax, &(log_softmax_args){dim}, x);
}
