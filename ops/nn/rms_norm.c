/* rms_norm(x, w) = x rstd w over the last dimension
 * (Zhang, Sennrich 2019, arXiv:1910.07467)
 *
 *     x: (…, C), w: (C) or absent; f32 f64 bf16 f16       y: like x
 *     rstd = 1 / sqrt(mean(x x) + eps)
 *     e = dy w:      dx = rstd (e - x rstd^2 mean(e x))      dw = sum dy x rstd
 *
 * Layer norm without its mean and bias; see layer_norm.c.
 */
#include "ops/nn/norm.h"

static bool rms_norm_shape(tn_op_call *c) {
    return tn__eps_fits(c, ((const tn_norm_args *)c->args)->eps) &&
           tn_op_shapes(c, "... n, n -> ... n, wide: ...");
}

static tn_status rms_norm_host(const tn_op_call *c) {
    const tn_norm_args *args = c->args;
    const tn_desc *x = c->x[0];
    int64_t rows = x->size[0], n = x->size[1];
    for (int64_t i = 0; i < rows; i++) {
        double squares = 0;
        for (int64_t j = 0; j < n; j++) {
            squares += tn__row_load(x, i, j) * tn__row_load(x, i, j);
        }
        double r = 1 / sqrt(squares / (double)n + args->eps);
        for (int64_t j = 0; j < n; j++) {
            tn__row_store(c->y[0], i, j,
                          tn__row_load(x, i, j) * r * tn__vector_load(c->x[1], j, 1));
        }
        tn__vector_store(c->y[1], i, r);
    }
    return TN_OK;
}

static tn_status rms_norm_host_back(const tn_op_back *b) {
    tn__norm_back(b, NULL, b->y[1]);
    return TN_OK;
}

static tn_tensor *rms_norm_compose(tn_op_call *c) {
    const tn_norm_args *args = c->args;
    tn_tensor *x = c->in[0], *w = tn__optional(c, 1);
    tn_tensor *rstd = tn_rsqrt(tn_add_scalar(tn_mean(tn_square(x), TN_DIMS(-1), true), args->eps));
    tn_tensor *y = tn_mul(x, rstd);
    return w ? tn_mul(y, w) : y;
}

const tn_op tn__op_rms_norm = {
    .name = "rms_norm",
    .inputs = {"x", "weight"},
    .args_size = sizeof(tn_norm_args),
    .fields = {TN_FIELD(tn_norm_args, eps)},
    .optional = 1u << 1,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1),
    .shape = rms_norm_shape,
    .kernel = TN_FUSED(rms_norm),
    .host = {rms_norm_host, rms_norm_host_back},
    .compose = rms_norm_compose,
    .flags = TN_OP_WIDE,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(0)},
    .adds = 1u << 0,
    .widens = 1u << 1,
    .samples = "{0.25:2, 0.5:1.5} [3, 5] [5] eps=1e-05; [3, 5] - eps=1e-05; "
               "[2, 3, 4] [4] eps=0.1; [2, 3, 4] - eps=0.1; [6] [6] eps=1e-05; "
               "[0, 4] [4] eps=0.1; [3, 1] [1] eps=0.1; [4, 67] [67] eps=0.1; "
               "[70, 3] [3] eps=1e-05",
};

tn_tensor *tn_rms_norm_op(tn_tensor *x, tn_tensor *weight, double eps) {
    return tn_apply2(&tn__op_rms_norm, &(tn_norm_args){eps}, x, weight);
}
