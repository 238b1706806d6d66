/* linear_q8(x, w, scale, b) = x (scale w)^T + b, with an 8-bit signed weight
 *
 *     x: (…, in), f32 f64 bf16 f16; w: (out, in), i8; scale: (out), a float
 *     b: (out), like x, or absent       y: (…, out), like x
 *
 * Row j of the weight is scale[j] w[j]. The kernel reads w once and keeps its sums in f32. x, scale
 * and b have gradients, through the composition; bytes have none.
 */
#include "backends/ref/ref.h"
#include "ops/dims.h"
#include "ops/op.h"

static tn_tensor *linear_q8_compose(tn_op_call *c) {
    tn_dtype dtype = tn_dtype_of(c->in[0]);
    tn_tensor *scale = tn_unsqueeze(tn_cast(c->in[2], dtype), 1);
    return tn_linear_op(c->in[0], tn_mul(tn_cast(c->in[1], dtype), scale), tn__optional(c, 3));
}

/* scale is applied to sums that are not yet rounded to y's dtype. */
static tn_status linear_q8_host(const tn_op_call *c) {
    const tn_desc *y = c->y[0], *x = c->x[0], *w = c->x[1], *scale = c->x[2], *b = c->x[3];
    for (walk at = walk_over(1, y); at.left > 0; walk_next(&at)) {
        int64_t i = at.index[0], j = at.index[1];
        double sum = 0;
        for (int64_t t = 0; t < x->size[1]; t++) {
            sum += load_float(x, i * x->stride[0] + t * x->stride[1]) *
                   (double)load_integer(w, j * w->stride[0] + t * w->stride[1]);
        }
        store_float(y, at.at[0],
                    load_float(scale, j * scale->stride[0]) * sum +
                        (b ? load_float(b, j * b->stride[0]) : 0));
    }
    return TN_OK;
}

static void linear_q8_work(tn_op_work *w) {
    tn__work_product(w, tn__work_count(w->x[0]) * (double)w->x[1]->size[0], 1u << 0);
}

const tn_op tn__op_linear_q8 = {
    .name = "linear_q8",
    .inputs = {"x", "weight", "scale", "bias"},
    .optional = 1u << 3,
    .saves = TN_SAVES_INPUTS,
    .shapes = "... in, i8: out in, float: out, out -> ... out",
    .kernel = TN_FUSED(linear_q8),
    .host = {.forward = linear_q8_host},
    .compose = linear_q8_compose,
    .flags = TN_OP_WIDE,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1)},
    /* One row of x, few, and more than the kernel for few takes; no rows, and width 0. */
    .samples = "{-1:1, byte, 0.001:0.01, -1:1} [3, 4] [5, 4] [5] [5]; [3, 4] [5, 4] [5] -; "
               "[4] [3, 4] [3] [3]; [4] [3, 4] [3] -; [2, 3, 4] [2, 4] [2] [2]; "
               "[2, 3, 4] [2, 4] [2] -; [0, 4] [3, 4] [3] [3]; [0, 4] [3, 4] [3] -; "
               "[2, 0] [3, 0] [3] [3]; [2, 0] [3, 0] [3] -; [3, 2] [0, 2] [0] [0]; "
               "[3, 2] [0, 2] [0] -; [1, 70] [37, 70] [37] [37]; [1, 70] [37, 70] [37] -; "
               "[11, 70] [5, 70] [5] [5]; [11, 70] [5, 70] [5] -",
    .work = linear_q8_work,
};

tn_tensor *tn_linear_q8(tn_tensor *x, tn_tensor *weight, tn_tensor *scale, tn_tensor *bias) {
    return tn_apply(&tn__op_linear_q8, NULL, (tn_tensor *[]){x, weight, scale, bias}, 4);
}
