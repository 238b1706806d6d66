/* softmax(x) = exp(x - max x) / sum exp(x - max x), over one dimension, and log_softmax, its
 * logarithm without its underflow: x - max x - log(sum exp(x - max x))
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     softmax: dx = y (dy - sum(y dy))
 *     log_softmax: dx = dy - exp(y) sum(dy)
 *
 * The kernels work on rows: any other dimension is swapped with the last, without a copy. Backward
 * reads y only, so x may be freed. A row of -inf gives NaN.
 */
#include "backends/softmax.h"
#include "backends/ref/ref.h"
#include "ops/dims.h"

static bool softmax_shape(tn_op_call *c) {
    const tn_softmax_args *args = c->args;
    return tn_op_float(c, 0) && tn__dim_of_any(c->in[0], args->dim, c->op->name) >= 0 &&
           tn_op_out_like(c, 0);
}

/* The largest element only keeps exp from overflowing; the result does not depend on it, so no
 * gradient flows there. */
static tn_tensor *softmax_compose(tn_op_call *c) {
    const tn_softmax_args *args = c->args;
    if (tn_count(c->in[0]) == 0) { return tn_exp(c->in[0]); }
    tn_tensor *x = c->in[0];
    tn_dims dim = TN_DIMS(args->dim);
    tn_tensor *e = tn_exp(tn_sub(x, tn_max(tn_detach(x), dim, true)));
    return tn_div(e, tn_sum(e, dim, true));
}

static tn_status softmax_loops(const tn_op_call *c, bool log_form) {
    tn_desc to = tn__softmax_rows(c->y[0], c->args), from = tn__softmax_rows(c->x[0], c->args);
    const tn_desc *y = &to, *x = &from;
    tn_desc y_rows = rows_of(y), x_rows = rows_of(x);
    int64_t n = row_length(x), dy = row_stride(y), dx = row_stride(x);
    for (walk w = walk_over(2, &y_rows, &x_rows); w.left > 0; walk_next(&w)) {
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) {
            max = fmax(max, load_float(x, w.at[1] + j * dx));
        }
        for (int64_t j = 0; j < n; j++) {
            /* NaN anywhere, or nothing but -inf: NaN */
            sum += exp(load_float(x, w.at[1] + j * dx) - max);
        }
        for (int64_t j = 0; j < n; j++) {
            double shifted = load_float(x, w.at[1] + j * dx) - max;
            store_float(y, w.at[0] + j * dy, log_form ? shifted - log(sum) : exp(shifted) / sum);
        }
    }
    return TN_OK;
}

static tn_status gradient_loops(const tn_op_back *b, bool log_form) {
    tn_desc to = tn__softmax_rows(b->dx[0], b->args), made = tn__softmax_rows(b->y[0], b->args),
            arrived = tn__softmax_rows(b->dy[0], b->args);
    const tn_desc *dx = &to, *y = &made, *dy = &arrived;
    tn_desc dx_rows = rows_of(dx), y_rows = rows_of(y), dy_rows = rows_of(dy);
    int64_t n = row_length(dx);
    for (walk w = walk_over(3, &dx_rows, &y_rows, &dy_rows); w.left > 0; walk_next(&w)) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            double g = load_float(dy, w.at[2] + j * row_stride(dy));
            sum += log_form ? g : g * load_float(y, w.at[1] + j * row_stride(y));
        }
        for (int64_t j = 0; j < n; j++) {
            double g = load_float(dy, w.at[2] + j * row_stride(dy)),
                   value = load_float(y, w.at[1] + j * row_stride(y));
            store_float(dx, w.at[0] + j * row_stride(dx),
                        log_form ? g - exp(value) * sum : value * (g - sum));
        }
    }
    return TN_OK;
}

static tn_status softmax_host(const tn_op_call *c) {
    return softmax_loops(c, false);
}
static tn_status softmax_host_back(const tn_op_back *b) {
    return gradient_loops(b, false);
}

static void softmax_backward(tn_op_grad *g) {
    const tn_softmax_args *args = g->args;
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_tensor *inner = tn_sum(tn_mul(y, dy), TN_DIMS(args->dim), true);
    tn_op_give(g, 0, tn_mul(y, tn_sub(dy, inner)));
}

/* Each position of dim, rows of size 0 and 1, one longer than a vector register, and values whose
 * exponentials overflow. */
static const char softmax_samples[] =
    "{-2:2} [3, 5] dim=-1; [3, 5] dim=0; [2, 3, 4] dim=1; [7] dim=0; [4, 1] dim=-1; [3, 0] dim=1; "
    "[0, 3] dim=-1; [2, 67] dim=-1; [2, 3]=(1000, 992, -1000, 88, 89, 90) dim=-1; [] dim=0";

const tn_op tn__op_softmax = {
    .name = "softmax",
    .inputs = {"x"},
    .args_size = sizeof(tn_softmax_args),
    .fields = {TN_FIELD(tn_softmax_args, dim)},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = softmax_shape,
    .kernel = TN_FUSED(softmax),
    .host = {softmax_host, softmax_host_back},
    .compose = softmax_compose,
    .backward = softmax_backward,
    .flags = TN_OP_WIDE,
    .samples = softmax_samples,
};

tn_tensor *tn_softmax(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_softmax, &(tn_softmax_args){dim}, x);
}

/* ---- log_softmax ----------------------------------------------------------------------------- */

/* As in softmax: no gradient flows through the largest element. */
static tn_tensor *log_softmax_compose(tn_op_call *c) {
    const tn_softmax_args *args = c->args;
    if (tn_count(c->in[0]) == 0) { return tn_exp(c->in[0]); }
    tn_tensor *x = c->in[0];
    tn_dims dim = TN_DIMS(args->dim);
    tn_tensor *low = tn_sub(x, tn_max(tn_detach(x), dim, true));
    return tn_sub(low, tn_log(tn_sum(tn_exp(low), dim, true)));
}

static tn_status log_softmax_host(const tn_op_call *c) {
    return softmax_loops(c, true);
}
static tn_status log_softmax_host_back(const tn_op_back *b) {
    return gradient_loops(b, true);
}

static void log_softmax_backward(tn_op_grad *g) {
    const tn_softmax_args *args = g->args;
    tn_tensor *y = tn_op_saved_output(g, 0), *dy = g->dout[0];
    tn_tensor *total = tn_sum(dy, TN_DIMS(args->dim), true);
    tn_op_give(g, 0, tn_sub(dy, tn_mul(tn_exp(y), total)));
}

const tn_op tn__op_log_softmax = {
    .name = "log_softmax",
    .inputs = {"x"},
    .args_size = sizeof(tn_softmax_args),
    .fields = {TN_FIELD(tn_softmax_args, dim)},
    .saves = TN_SAVES_OUTPUT(0),
    .shape = softmax_shape,
    .kernel = TN_FUSED(log_softmax),
    .host = {log_softmax_host, log_softmax_host_back},
    .compose = log_softmax_compose,
    .backward = log_softmax_backward,
    .flags = TN_OP_WIDE,
    .samples = softmax_samples,
};

tn_tensor *tn_log_softmax(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_log_softmax, &(tn_softmax_args){dim}, x);
}
