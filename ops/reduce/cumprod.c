/* y[i] = x[0] … x[i] along dim; in reverse x[i] … x[n - 1]
 *
 *     x: any shape and dtype       y: like x; i64 for integers and bools
 *     dx[k] = the sum over i >= k of dy[i] times the product of x[0 … i] without x[k]
 *
 * which is y[k - 1] times a linear scan of dy: without a division, zeros are no special case in
 * derivatives of any order. Computed in f64, as are both factors of dx: one may be beyond x's range
 * where their product is not.
 */
#include "backends/scratch.h"
#include "ops/reduce/cumulative.h"
#include "ops/reduce/reduce.h"

/* ---- What cumulative operations share -------------------------------------------------------- */

bool tn__cumulative_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    int dim = tn__dim_of_any(x, ((const tn__cumulative_args *)c->args)->dim, c->op->name);
    return dim >= 0 && tn_op_out(c, x->dims, tn_dtype_is_float(x->dtype) ? x->dtype : TN_I64);
}

/* Integers were cast to i64. */
typedef struct cumulative_job {
    tn__lines x, y;
    bool product, reverse, real;
} cumulative_job;

static void cumulate_lines(const void *user, int64_t first, int64_t end) {
    const cumulative_job *c = user;
    for (int64_t i = first; i < end; i++) {
        int64_t x = tn__line_at(&c->x, i), y = tn__line_at(&c->y, i);
        double value = c->product;
        uint64_t whole = c->product; /* unsigned, so that overflow wraps */
        for (int64_t n = 0; n < c->x.length; n++) {
            int64_t k = c->reverse ? c->x.length - 1 - n : n;
            if (c->real) {
                double next = tn__host_load(c->x.data, c->x.dtype, x + k * c->x.step);
                value = c->product ? value * next : value + next;
                tn__host_store(c->y.data, c->y.dtype, y + k * c->y.step, value);
            } else {
                uint64_t next = (uint64_t)((const int64_t *)c->x.data)[x + k * c->x.step];
                whole = c->product ? whole * next : whole + next;
                ((int64_t *)c->y.data)[y + k * c->y.step] = (int64_t)whole;
            }
        }
    }
}

tn_status tn__cumulate(const tn_op_call *c, bool product) {
    const tn__cumulative_args *args = c->args;
    int dim = tn__dim_from_start(args->dim, c->x[0]->ndim);
    cumulative_job job = {.x = tn__lines_along(c->x[0], dim),
                          .y = tn__lines_along(c->y[0], dim),
                          .product = product,
                          .reverse = args->reverse,
                          .real = tn_dtype_is_float(c->y[0]->dtype)};
    tn__host_pieces(job.x.count, 2 * job.x.length, cumulate_lines, &job);
    return TN_OK;
}

tn_tensor *tn__cumulative_apply(const tn_op *op, tn_tensor *x, int dim, bool reverse) {
    if (!tn__usable(x, op->name)) { return tn_inert(); }
    x = tn_dtype_is_float(x->dtype) ? x : tn_cast(x, TN_I64);
    return tn_apply1(op, &(tn__cumulative_args){dim, reverse}, x);
}

/* ---- Products -------------------------------------------------------------------------------- */

static tn_status cumprod_host(const tn_op_call *c) {
    return tn__cumulate(c, true);
}

typedef struct product_back {
    tn__lines x, dy, dx;
    double *before; /* for each element of x the product of those before it */
    bool reverse;
} product_back;

static void cumprod_back_piece(const void *user, int64_t first, int64_t end) {
    const product_back *b = user;
    int64_t length = b->x.length;
    for (int64_t i = first; i < end; i++) {
        int64_t x = tn__line_at(&b->x, i), dy = tn__line_at(&b->dy, i), dx = tn__line_at(&b->dx, i);
        double *before = b->before + i * length, product = 1.0, after = 0.0;
        for (int64_t n = 0; n < length; n++) {
            int64_t k = b->reverse ? length - 1 - n : n;
            before[n] = product;
            product *= tn__host_load(b->x.data, b->x.dtype, x + k * b->x.step);
        }
        for (int64_t n = length - 1; n >= 0; n--) {
            int64_t k = b->reverse ? length - 1 - n : n;
            after += tn__host_load(b->dy.data, b->dy.dtype, dy + k * b->dy.step);
            tn__host_store(b->dx.data, b->dx.dtype, dx + k * b->dx.step, before[n] * after);
            after *= tn__host_load(b->x.data, b->x.dtype, x + k * b->x.step);
        }
    }
}

static tn_status cumprod_host_backward(const tn_op_back *b) {
    const tn__cumulative_args *args = b->args;
    int dim = tn__dim_from_start(args->dim, b->x[0]->ndim);
    product_back job = {.x = tn__lines_along(b->x[0], dim),
                        .dy = tn__lines_along(b->dy[0], dim),
                        .dx = tn__lines_along(b->dx[0], dim),
                        .reverse = args->reverse};
    TN__SCRATCH(double, before, b->ctx, (job.x.count * job.x.length));
    if (!before) { return TN_ENOMEM; }
    job.before = before;
    tn__host_pieces(job.x.count, 4 * job.x.length, cumprod_back_piece, &job);
    return TN_OK;
}

/* The same, recorded: the product of all before x[k], times s[k] = dy[k] + x[k + 1] s[k + 1]. */
static void cumprod_backward(tn_op_grad *g) {
    const tn__cumulative_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0), *dy = g->dout[0];
    if (tn_ndim(x) == 0) {
        tn_op_give(g, 0, dy);
        return;
    }
    tn_tensor *wide = tn_cast(x, TN_F64);
    tn_tensor *before = tn__cumulative_apply(
        &tn__op_cumprod, tn__shift(wide, args->dim, args->reverse, 1.0), args->dim, args->reverse);
    tn_tensor *after =
        tn__linear_scan(tn_cast(dy, TN_F64), tn__shift(wide, args->dim, !args->reverse, 0.0),
                        args->dim, !args->reverse);
    tn_op_give(g, 0, tn_cast(tn_mul(before, after), tn_dtype_of(x)));
}

const tn_op tn__op_cumprod = {
    .name = "cumprod",
    .inputs = {"x"},
    .args_size = sizeof(tn__cumulative_args),
    .fields = {TN_FIELD(tn__cumulative_args, dim), TN_FIELD(tn__cumulative_args, reverse)},
    .saves = TN_SAVES_INPUT(0),
    .shape = tn__cumulative_shape,
    .kernel = TN_FUSED(cumprod),
    .host = {cumprod_host, cumprod_host_backward},
    .backward = cumprod_backward,
    .flags = TN_OP_WIDE,
    /* With zeros too: none, one, two and more in a line. */
    .samples = "{0.5:1.5} [7] dim=0, reverse=False; [3, 4] dim=1, reverse=True; "
               "[3, 4] dim=0, reverse=False; [2, 3, 4] dim=-2, reverse=False; "
               "[3, 0] dim=1, reverse=False; [0, 3] dim=1, reverse=True; "
               "[1] dim=0, reverse=False; [] dim=-1, reverse=False; [5, 67] dim=1, reverse=False; "
               "{-1.5:-0.5} [7] dim=0, reverse=False; [3, 4] dim=1, reverse=True; "
               "[3, 4] dim=0, reverse=False; [2, 3, 4] dim=-2, reverse=False; "
               "[3, 0] dim=1, reverse=False; [0, 3] dim=1, reverse=True; "
               "[1] dim=0, reverse=False; [] dim=-1, reverse=False; [5, 67] dim=1, reverse=False; "
               "{once} [4, 4]=(2, 0, 3, -1, 0, 2, 0, 1.5, 0, 2, 3, 4, 1, 2, 2, 0) dim=1, "
               "reverse=False",
};

tn_tensor *tn_cumprod(tn_tensor *x, int dim) {
    return tn__cumulative_apply(&tn__op_cumprod, x, dim, false);
}
