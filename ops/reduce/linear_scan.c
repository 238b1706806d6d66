/* y[k] = b[k] + a[k] y[k - 1] along dim, with 0 before the first; in reverse from y[k + 1]
 *
 *     b, a: the same shape, f32 f64 bf16 f16       y: like them
 *     db = dy scanned in the other direction, with a shifted by one
 *     da[k] = db[k] y[k - 1]
 *
 * The gradient of products along a line (cumprod.c). Its own gradient is a linear scan too, so
 * there are derivatives of every order. Computed in f64.
 */
#include "ops/dims.h"
#include "ops/reduce/cumulative.h"

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

tn_tensor *tn__shift(tn_tensor *t, int dim, bool back, double value) {
    int64_t size = tn_size(t, dim);
    if (size == 0) { return t; }
    tn_dims one = tn_shape(t);
    one.size[tn__dim_from_start(dim, one.ndim)] = 1;
    tn_tensor *rest = tn_narrow(t, dim, back ? 1 : 0, size - 1);
    tn_tensor *filled = tn_expand(tn__constant(t, value), one);
    return tn_cat((tn_tensor *[]){back ? rest : filled, back ? filled : rest}, 2, dim);
}

static void linear_scan_backward(tn_op_grad *g) {
    const tn__cumulative_args *args = g->args;
    tn_tensor *a = tn_op_saved_input(g, 1), *y = tn_op_saved_output(g, 0);
    tn_tensor *db = tn__linear_scan(g->dout[0], tn__shift(a, args->dim, !args->reverse, 0.0),
                                    args->dim, !args->reverse);
    tn_op_give(g, 0, db);
    if (g->wants[1]) { tn_op_give(g, 1, tn_mul(db, tn__shift(y, args->dim, args->reverse, 0.0))); }
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

tn_tensor *tn__linear_scan(tn_tensor *b, tn_tensor *a, int dim, bool reverse) {
    return tn_apply2(&tn__op_linear_scan, &(tn__cumulative_args){dim, reverse}, b, a);
}
