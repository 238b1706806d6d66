/* mse(x, t) = (x - t)^2, its mean or its sum
 *
 *     x and t: any shape, the same; f32 f64 bf16 f16
 *     y: 0-dimensional, or x's shape with TN_NONE
 *     dx = 2 (x - t) dy / n        dt = -dx        (n: the number of elements for the mean, or 1)
 */
#include "ops/loss/loss.h"

typedef struct mse_args {
    tn_reduction how;
} mse_args;

static bool mse_shape(tn_op_call *c) {
    return tn_op_shapes(c, "..., ...") &&
           tn__loss_out(c, ((const mse_args *)c->args)->how, tn_shape(c->in[0]));
}

static tn_status sum_squares(const tn_op_call *c, const tn_desc *y) {
    tn_status status = c->kernels->binary(c->ctx, TN_SUB, y, c->x[0], c->x[1]);
    return status == TN_OK ? c->kernels->unary(c->ctx, TN_SQUARE, y, y, 0.0, 0.0) : status;
}

static tn_status mse_forward(const tn_op_call *c) {
    const mse_args *args = c->args;
    if (args->how == TN_NONE) { return sum_squares(c, c->y[0]); }
    TN__SCRATCH_POOL(scratch, c);
    tn_desc all = *c->x[0]; /* x's shape */
    if (!tn__scratch_take(&scratch, &all)) { return TN_ENOMEM; }
    tn_desc row = tn__desc_vector(all.data, all.dtype, tn_dims_count(tn_shape(c->in[0]))),
            y = tn__desc_vector(c->y[0]->data, all.dtype, 1);
    tn_status status = sum_squares(c, &all);
    return status == TN_OK ? c->kernels->reduce(c->ctx, args->how, &y, &row) : status;
}

static void mse_backward(tn_op_grad *g) {
    const mse_args *args = g->args;
    int64_t n = args->how == TN_MEAN ? tn_dims_count(tn_op_input_dims(g, 0)) : 1;
    tn_tensor *difference = tn_sub(tn_op_saved_input(g, 0), tn_op_saved_input(g, 1));
    double k = n ? 2.0 / (double)n : 0.0; /* without elements dx is empty */
    tn_tensor *dx = tn_mul(difference, tn_mul_scalar(g->dout[0], k));
    tn_op_give(g, 0, dx);
    if (g->wants[1]) { tn_op_give(g, 1, tn_neg(dx)); }
}

const tn_op tn__op_mse = {
    .name = "mse",
    .inputs = {"x", "target"},
    .args_size = sizeof(mse_args),
    .fields = {TN__REDUCTION(mse_args, how)},
    .saves = TN_SAVES_INPUTS,
    .shape = mse_shape,
    .forward = mse_forward,
    .backward = mse_backward,
    .flags = TN_OP_WIDE,
    .samples = "{-1:1} [7] [7] reduction='mean'; [3, 4] [3, 4] reduction='mean'; "
               "[] [] reduction='mean'; [2, 0] [2, 0] reduction='mean'; [1] [1] reduction='mean'; "
               "[3, 67] [3, 67] reduction='mean'; [7] [7] reduction='sum'; "
               "[3, 4] [3, 4] reduction='sum'; [] [] reduction='sum'; "
               "[2, 0] [2, 0] reduction='sum'; [1] [1] reduction='sum'; "
               "[3, 67] [3, 67] reduction='sum'; [7] [7] reduction='none'; "
               "[3, 4] [3, 4] reduction='none'; [] [] reduction='none'; "
               "[2, 0] [2, 0] reduction='none'; [1] [1] reduction='none'; "
               "[3, 67] [3, 67] reduction='none'",
};

tn_tensor *tn_mse(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_apply2(&tn__op_mse, &(mse_args){how}, x, target);
}
