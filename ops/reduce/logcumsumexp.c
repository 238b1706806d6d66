/* y[i] = log(exp(x[0]) + … + exp(x[i])), along one dimension
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx[i] = exp(x[i]) (sum over j >= i of dy[j] / exp(y[j]))
 *
 * With r[i] = dy[i] + r[i + 1] exp(y[i] - y[i + 1]) that is dx[i] = r[i] exp(x[i] - y[i]), where
 * nothing overflows: y never decreases.
 */
#include "ops/host.h"

#include <math.h>

static bool logcumsumexp_shape(tn_op_call *c) {
    const tn__dim_args *args = c->args;
    return tn_op_float(c, 0) && tn__dim_of_any(c->in[0], args->dim, c->op->name) >= 0 &&
           tn_op_out_like(c, 0);
}

/* Each line against itself, i down and j across; j > i is masked. */
static tn_tensor *logcumsumexp_compose(tn_op_call *c) {
    int dim = ((const tn__dim_args *)c->args)->dim;
    tn_tensor *x = tn_reshape(c->in[0], tn_ndim(c->in[0]) ? tn_shape(c->in[0]) : TN_DIMS(1));
    int64_t n = tn_size(x, dim);
    tn_tensor *i = tn__arange(tn_device_of(x), 0, (double)n, 1, TN_I64);
    tn_tensor *after = tn_gt(tn_unsqueeze(i, 0), tn_unsqueeze(i, 1));
    tn_tensor *across = tn_unsqueeze(tn_transpose(x, dim, -1), -2);
    tn_dims square = tn_shape(across);
    square.size[square.ndim - 2] = n;
    tn_tensor *masked = tn_masked_fill(tn_expand(across, square), after, -INFINITY);
    tn_tensor *y = tn_transpose(tn_logsumexp(masked, TN_DIMS(-1), false), dim, -1);
    return tn_reshape(y, tn_shape(c->in[0]));
}

/* Lines of x and y; in backward of x, dy and y, which dx overwrites. */
typedef struct logcumsumexp_job {
    tn__lines x, y, dy;
} logcumsumexp_job;

static inline double log_add(double a, double b) {
    double top = a > b ? a : b;
    return isinf(top) && a == a && b == b ? top
           : a + b == a + b               ? top + log1p(exp(-fabs(a - b)))
                                          : a + b;
}

static inline void scan_line(const logcumsumexp_job *j, int64_t i, tn_dtype t) {
    int64_t x = tn__line_at(&j->x, i), y = tn__line_at(&j->y, i);
    double sum = -INFINITY;
    for (int64_t k = 0; k < j->x.length; k++, x += j->x.step, y += j->y.step) {
        sum = log_add(sum, tn__host_load(j->x.data, t, x));
        tn__host_store(j->y.data, t, y, sum);
    }
}

static inline void pull_line(const logcumsumexp_job *j, int64_t i, tn_dtype t) {
    int64_t last = j->x.length - 1, x = tn__line_at(&j->x, i) + last * j->x.step;
    int64_t y = tn__line_at(&j->y, i) + last * j->y.step;
    int64_t dy = tn__line_at(&j->dy, i) + last * j->dy.step;
    double r = 0.0, next = 0.0;
    for (int64_t k = 0; k <= last; k++, x -= j->x.step, y -= j->y.step, dy -= j->dy.step) {
        double own = tn__host_load(j->y.data, t, y);
        r = tn__host_load(j->dy.data, t, dy) + (k ? r * exp(own - next) : 0.0);
        next = own;
        tn__host_store(j->y.data, t, y, r * exp(tn__host_load(j->x.data, t, x) - own));
    }
}

static void logcumsumexp_lines(const void *job, int64_t first, int64_t end) {
    const logcumsumexp_job *j = job;
    for (int64_t i = first; i < end; i++) {
        j->x.dtype == TN_F64 ? scan_line(j, i, TN_F64) : scan_line(j, i, TN_F32);
        if (j->dy.data) {
            j->x.dtype == TN_F64 ? pull_line(j, i, TN_F64) : pull_line(j, i, TN_F32);
        }
    }
}

static tn_status run_lines(const tn_desc *x, const tn_desc *y, const tn_desc *dy, int dim) {
    dim = tn__dim_from_start(dim, x->ndim);
    logcumsumexp_job job = {.x = tn__lines_along(x, dim), .y = tn__lines_along(y, dim)};
    if (dy) { job.dy = tn__lines_along(dy, dim); }
    tn__host_pieces(job.x.count, 20 * job.x.length, logcumsumexp_lines, &job); /* exp and log */
    return TN_OK;
}

static tn_status logcumsumexp_host(const tn_op_call *c) {
    return run_lines(c->x[0], c->y[0], NULL, ((const tn__dim_args *)c->args)->dim);
}

static tn_status logcumsumexp_host_backward(const tn_op_back *b) {
    return run_lines(b->x[0], b->dx[0], b->dy[0], ((const tn__dim_args *)b->args)->dim);
}

const tn_op tn__op_logcumsumexp = {
    .name = "logcumsumexp",
    .inputs = {"x"},
    .args_size = sizeof(tn__dim_args),
    .fields = {TN_FIELD(tn__dim_args, dim)},
    .saves = TN_SAVES_INPUTS,
    .shape = logcumsumexp_shape,
    .host = {logcumsumexp_host, logcumsumexp_host_backward},
    .compose = logcumsumexp_compose,
    .flags = TN_OP_WIDE,
    /* Each position of dim, empty, one element, more than a piece; differences too large for
     * exp. */
    .samples = "{-2:2} [] dim=0; [] dim=-1; [7] dim=0; [7] dim=-1; [3, 5] dim=0; [3, 5] dim=-1; "
               "[0, 3] dim=0; [0, 3] dim=-1; [2, 1, 4] dim=0; [2, 1, 4] dim=-1; "
               "[3, 5, 300] dim=0; [3, 5, 300] dim=-1; [2, 3]=(-900, 700, 900, -3, -2, 0) dim=-1",
};

tn_tensor *tn_logcumsumexp(tn_tensor *x, int dim) {
    return tn_apply1(&tn__op_logcumsumexp, &(tn__dim_args){dim}, x);
}
