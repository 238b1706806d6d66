/* Cumulative sums and products along dim; in reverse from the last element on
 *
 *     x: any shape and dtype       y: like x; i64 for integers and bools
 *     cumsum: y[i] = x[0] + … + x[i]       dx = the sums of dy in the other direction
 *     cumprod: y[i] = x[0] … x[i]
 *     dx[k] = the sum over i >= k of dy[i] times the product of x[0 … i] without x[k]
 *
 * which is y[k - 1] times a linear scan of dy: without a division, zeros are no special case in
 * derivatives of any order.
 *
 *     linear_scan(b, a): y[k] = b[k] + a[k] y[k - 1], with 0 before the first
 *     b, a: the same shape, f32 f64 bf16 f16       y: like them
 *     db = dy scanned in the other direction, with a shifted by one       da[k] = db[k] y[k - 1]
 *
 * All are computed in f64 and rounded once per element, as are both factors of cumprod's dx: one
 * may be beyond x's range where their product is not.
 */
#include "backends/lines.h"
#include "backends/scratch.h"
#include "ops/host.h"

/* ---- What cumulative operations share -------------------------------------------------------- */

static bool cumulative_shape(tn_op_call *c) {
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
        double value = c->product ? 1.0 : 0.0;
        uint64_t whole = c->product ? 1 : 0; /* unsigned, so that overflow wraps */
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

static tn_status cumulate_along(const tn_op_call *c, bool product) {
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

static tn_tensor *cumulative_apply(const tn_op *op, tn_tensor *x, int dim, bool reverse) {
    if (!tn__usable(x, op->name)) { return tn_inert(); }
    x = tn_dtype_is_float(x->dtype) ? x : tn_cast(x, TN_I64);
    return tn_apply1(op, &(tn__cumulative_args){dim, reverse}, x);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static tn_status cumsum_host(const tn_op_call *c) {
    return cumulate_along(c, false);
}

static void cumsum_backward(tn_op_grad *g) {
    const tn__cumulative_args *args = g->args;
    tn_op_give(g, 0, cumulative_apply(&tn__op_cumsum, g->dout[0], args->dim, !args->reverse));
}

const tn_op tn__op_cumsum = {
    .name = "cumsum",
    .inputs = {"x"},
    .args_size = sizeof(tn__cumulative_args),
    .fields = {TN_FIELD(tn__cumulative_args, dim), TN_FIELD(tn__cumulative_args, reverse)},
    .shape = cumulative_shape,
    .kernel = TN_FUSED(cumsum),
    .host = {.forward = cumsum_host},
    .backward = cumsum_backward,
    .flags = TN_OP_WIDE,
    .samples = "[7] dim=0, reverse=False; [3, 4] dim=1, reverse=True; "
               "[3, 4] dim=0, reverse=False; [2, 3, 4] dim=-2, reverse=False; "
               "[3, 0] dim=1, reverse=False; [0, 3] dim=1, reverse=True; "
               "[1] dim=0, reverse=False; [] dim=-1, reverse=False; [5, 67] dim=1, reverse=False",
};

tn_tensor *tn_cumsum(tn_tensor *x, int dim) {
    return cumulative_apply(&tn__op_cumsum, x, dim, false);
}

/* ---- Linear scans ---------------------------------------------------------------------------- */

typedef struct scan_job {
    tn__lines b, a, y;
    bool reverse;
} scan_job;

static bool linear_scan_shape(tn_op_call *c) {
    return tn__op_dim(c, ((const tn__cumulative_args *)c->args)->dim) >= 0 &&
           tn_op_shapes(c, "..., ... -> ...");
}

static void scan_piece(const void *user, int64_t first, int64_t end) {
    const scan_job *j = user;
    tn_dtype dtype = j->y.dtype;
    for (int64_t i = first; i < end; i++) {
        int64_t b = tn__line_at(&j->b, i), a = tn__line_at(&j->a, i), y = tn__line_at(&j->y, i);
        double carried = 0.0;
        for (int64_t n = 0; n < j->y.length; n++) {
            int64_t k = j->reverse ? j->y.length - 1 - n : n;
            double now = tn__host_load(j->b.data, dtype, b + k * j->b.step);
            if (n > 0) { now += tn__host_load(j->a.data, dtype, a + k * j->a.step) * carried; }
            carried = now;
            tn__host_store(j->y.data, dtype, y + k * j->y.step, carried);
        }
    }
}

static tn_status linear_scan_host(const tn_op_call *c) {
    const tn__cumulative_args *args = c->args;
    int dim = tn__dim_from_start(args->dim, c->x[0]->ndim);
    scan_job job = {.b = tn__lines_along(c->x[0], dim),
                    .a = tn__lines_along(c->x[1], dim),
                    .y = tn__lines_along(c->y[0], dim),
                    .reverse = args->reverse};
    tn__host_pieces(job.y.count, 3 * job.y.length, scan_piece, &job);
    return TN_OK;
}

/* Shifts each element to the next position or, with `back`, to the previous one; the free end gets
 * `value`. */
static tn_tensor *shift_line(tn_tensor *t, int dim, bool back, double value) {
    int64_t size = tn_size(t, dim);
    if (size == 0) { return t; }
    tn_dims one = tn_shape(t);
    one.size[tn__dim_from_start(dim, one.ndim)] = 1;
    tn_tensor *rest = tn_narrow(t, dim, back ? 1 : 0, size - 1);
    tn_tensor *filled = tn_expand(tn__constant(t, value), one);
    return tn_cat((tn_tensor *[]){back ? rest : filled, back ? filled : rest}, 2, dim);
}

static tn_tensor *scan_linear(tn_tensor *b, tn_tensor *a, int dim, bool reverse) {
    return tn_apply2(&tn__op_linear_scan, &(tn__cumulative_args){dim, reverse}, b, a);
}

static void linear_scan_backward(tn_op_grad *g) {
    const tn__cumulative_args *args = g->args;
    tn_tensor *a = tn_op_saved_input(g, 1), *y = tn_op_saved_output(g, 0);
    tn_tensor *db = scan_linear(g->dout[0], shift_line(a, args->dim, !args->reverse, 0.0),
                                args->dim, !args->reverse);
    tn_op_give(g, 0, db);
    if (g->wants[1]) { tn_op_give(g, 1, tn_mul(db, shift_line(y, args->dim, args->reverse, 0.0))); }
}

const tn_op tn__op_linear_scan = {
    .name = "linear_scan",
    .inputs = {"b", "a"},
    .args_size = sizeof(tn__cumulative_args),
    .fields = {TN_FIELD(tn__cumulative_args, dim), TN_FIELD(tn__cumulative_args, reverse)},
    .saves = TN_SAVES_INPUT(1) | TN_SAVES_OUTPUT(0),
    .shape = linear_scan_shape,
    .host = {.forward = linear_scan_host},
    .backward = linear_scan_backward,
    .flags = TN_OP_WIDE,
    .samples = "{-1:1} [7] [7] dim=0, reverse=False; [3, 4] [3, 4] dim=1, reverse=True; "
               "[2, 3, 4] [2, 3, 4] dim=-2, reverse=False; "
               "[2, 3, 2] [2, 3, 2] dim=0, reverse=True; [3, 0] [3, 0] dim=1, reverse=False; "
               "[1] [1] dim=0, reverse=True; [5, 67] [5, 67] dim=1, reverse=False",
};

/* ---- Products -------------------------------------------------------------------------------- */

static tn_status cumprod_host(const tn_op_call *c) {
    return cumulate_along(c, true);
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
    tn_tensor *before = cumulative_apply(
        &tn__op_cumprod, shift_line(wide, args->dim, args->reverse, 1.0), args->dim, args->reverse);
    tn_tensor *after =
        scan_linear(tn_cast(dy, TN_F64), shift_line(wide, args->dim, !args->reverse, 0.0),
                    args->dim, !args->reverse);
    tn_op_give(g, 0, tn_cast(tn_mul(before, after), tn_dtype_of(x)));
}

const tn_op tn__op_cumprod = {
    .name = "cumprod",
    .inputs = {"x"},
    .args_size = sizeof(tn__cumulative_args),
    .fields = {TN_FIELD(tn__cumulative_args, dim), TN_FIELD(tn__cumulative_args, reverse)},
    .saves = TN_SAVES_INPUT(0),
    .shape = cumulative_shape,
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
    return cumulative_apply(&tn__op_cumprod, x, dim, false);
}
