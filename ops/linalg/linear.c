/* linear(x, w, b) = x w^T + b
 *
 *     x: (…, in), w: (out, in), b: (out) or absent; f32 f64 bf16 f16       y: (…, out)
 *     dx = dy w        dw = dy^T x        db = column sums of dy        (x and dy as rows)
 *
 * One operation, not two, because the kernel adds b while the product is still in cache. Each
 * gradient keeps only what it reads: with frozen weights x is not held. dw and db are summed in f32
 * where the weights are copies of f32 parameters, and added directly to the sum from other uses of
 * the same weights. A device's own kernel computes only these two: both come from one product.
 */
#include "ops/linalg/linear.h"

static tn_tensor *linear_compose(tn_op_call *c) {
    tn_tensor *y = tn_matmul(c->in[0], tn_t(c->in[1]));
    return tn__optional(c, 2) ? tn_add(y, c->in[2]) : y;
}

static tn_status linear_forward(const tn_op_call *c) {
    return c->kernels->linear(c->ctx, c->y[0], c->x[0], c->x[1], c->x[2]);
}

static void linear_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0];
    if (g->wants[0]) { tn_op_give(g, 0, tn_matmul(dy, tn_op_saved_input(g, 1))); }
    tn_tensor *rows = tn__as_rows(dy); /* (n, out) */
    if (g->wants[1]) {
        tn_op_give(g, 1, tn_matmul(tn_t(rows), tn__as_rows(tn_op_saved_input(g, 0))));
    }
    if (g->inputs > 2 && g->wants[2]) { tn_op_give(g, 2, tn_sum(rows, TN_DIMS(0), false)); }
}

/* ---- Gradients by kernels -------------------------------------------------------------------- */

/* y = a b + keep y */
static tn_status run_product(const tn_op_back *b, const tn_desc *y, const tn_desc *left,
                             const tn_desc *right, double keep) {
    tn_desc to = tn__desc_stacked(y), m = tn__desc_stacked(left), n = tn__desc_stacked(right);
    return b->kernels->matmul(b->ctx, &to, &m, &n, 1.0, keep);
}

/* row (+)= the sums of dy's columns in a wider dtype: a row of ones times dy, since products
 * widen. */
static tn_status sum_columns_wide(const tn_op_back *b, const tn_desc *row, const tn_desc *dy) {
    TN__SCRATCH_POOL(scratch, b);
    tn_desc one = tn__scratch(&scratch, TN_DIMS(), dy->dtype);
    if (!one.data) { return TN_ENOMEM; }
    tn_desc ones = {.data = one.data, .dtype = one.dtype, .ndim = 2, .size = {1, dy->size[0]}};
    tn_status status = b->kernels->fill(b->ctx, &one, 1.0);
    return status == TN_OK ? run_product(b, row, &ones, dy, b->adds ? 1.0 : 0.0) : status;
}

/* row += the sums of dy's columns */
static tn_status add_columns(const tn_op_back *b, const tn_desc *row, const tn_desc *dy) {
    TN__SCRATCH_POOL(scratch, b);
    tn_desc sums = tn__scratch(&scratch, TN_DIMS(1, row->size[1]), dy->dtype);
    if (!sums.data) { return TN_ENOMEM; }
    tn_status status = b->kernels->reduce(b->ctx, TN_SUM, &sums, dy);
    return status == TN_OK ? b->kernels->binary(b->ctx, TN_ADD, row, row, &sums) : status;
}

/* db (+)= the sums of dy's columns */
static tn_status sum_columns(const tn_op_back *b, const tn_desc *db, const tn_desc *dy) {
    tn_desc row = {.data = db->data,
                   .dtype = db->dtype,
                   .ndim = 2,
                   .size = {1, db->size[0]},
                   .stride = {db->size[0], db->stride[0]}};
    if (db->dtype != dy->dtype) { return sum_columns_wide(b, &row, dy); }
    return b->adds ? add_columns(b, &row, dy) : b->kernels->reduce(b->ctx, TN_SUM, &row, dy);
}

/* dw (+)= dy^T x and db, if needed: together if the device has a kernel for that. */
static tn_status weight_gradients(const tn_op_back *b, const tn_desc *dy) {
    const tn_desc *dw = b->dx[1], *db = b->dx[2];
    tn_status status = TN_EUNSUPPORTED;
    if (dw && (!db || db->dtype == dw->dtype)) {
        tn_op_back together = *b;
        together.dy[0] = dy;
        status = tn_op_run_back(&tn__op_linear, &together);
    }
    if (status != TN_EUNSUPPORTED) { return status; }
    tn_desc dyt = tn_desc_swap(dy, 0, 1);
    status = dw ? run_product(b, dw, &dyt, b->x[0], b->adds ? 1.0 : 0.0) : TN_OK;
    return status == TN_OK && db ? sum_columns(b, db, dy) : status;
}

tn_status tn__linear_back(const tn_op_back *b, const tn_desc *dy) {
    tn_status status = weight_gradients(b, dy);
    return status == TN_OK && b->dx[0] ? run_product(b, b->dx[0], dy, b->x[1], 0.0) : status;
}

static tn_status linear_backward_kernel(const tn_op_back *b) {
    return tn__linear_back(b, b->dy[0]);
}

void tn__linear_work(tn_op_work *w) {
    tn__work_product(w, tn__work_count(w->x[0]) * (double)w->x[1]->size[0], 1u << 0 | 1u << 1);
}

const char tn__linear_samples[] =
    "{-1:1} [3, 4] [5, 4] [5]; [3, 4] [5, 4] -; [4] [3, 4] [3]; [4] [3, 4] -; "
    "[2, 3, 4] [2, 4] [2]; [2, 3, 4] [2, 4] -; [0, 4] [3, 4] [3]; [0, 4] [3, 4] -; "
    "[2, 0] [3, 0] [3]; [2, 0] [3, 0] -; [3, 2] [0, 2] [0]; [3, 2] [0, 2] -; [1, 1] [1, 1] [1]; "
    "[1, 1] [1, 1] -; [2, 1, 2, 3] [4, 3] [4]; [2, 1, 2, 3] [4, 3] -; [7, 70] [19, 70] [19]; "
    "[7, 70] [19, 70] -";

const tn_op tn__op_linear = {
    .name = "linear",
    .inputs = {"x", "weight", "bias"},
    .optional = 1u << 2,
    .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0)},
    .shapes = "... in, out in, out -> ... out",
    .kernel = TN_FUSED(linear),
    .forward = linear_forward,
    .compose = linear_compose,
    .backward = linear_backward,
    .backward_kernel = linear_backward_kernel,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1)},
    .widens = TN__LINEAR_WEIGHTS,
    .adds = TN__LINEAR_WEIGHTS,
    .samples = tn__linear_samples,
    .work = tn__linear_work,
};

tn_tensor *tn_linear_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return tn_apply3(&tn__op_linear, NULL, x, weight, bias);
}
