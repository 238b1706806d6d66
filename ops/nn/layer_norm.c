/* layer_norm(x, w, b) = (x - mean) rstd w + b over the last dimension
 * (Ba, Kiros, Hinton 2016, arXiv:1607.06450)
 *
 *     x: (…, C), w and b: (C), each may be absent; f32 f64 bf16 f16       y: like x
 *     rstd = 1 / sqrt(var + eps), var = mean((x - mean)^2)
 *     h = (x - mean) rstd, e = dy w:
 *     dx = rstd (e - mean(e) - h mean(e h))        dw = sum dy h        db = sum dy
 *
 * mean and rstd, one of each per row, are saved for backward, which reads x once more and writes
 * dx, dw and db in one pass.
 */
#include "ops/nn/norm.h"

static bool layer_norm_shape(tn_op_call *c) {
    return tn__eps_fits(c, ((const tn_norm_args *)c->args)->eps) &&
           tn_op_shapes(c, "... n, n, n -> ... n, wide: ..., wide: ...");
}

static tn_status layer_norm_host(const tn_op_call *c) {
    const tn_norm_args *args = c->args;
    const tn_desc *x = c->x[0], *w = c->x[1], *b = c->x[2];
    int64_t rows = x->size[0], n = x->size[1];
    for (int64_t i = 0; i < rows; i++) {
        double first = n > 0 ? tn__row_load(x, i, 0) : 0, sum = 0, squares = 0;
        for (int64_t j = 0; j < n; j++) {
            sum +=
                tn__row_load(x, i, j) - first; /* 0 in a constant row, whose mean is then exact */
        }
        double m = first + sum / (double)n;
        for (int64_t j = 0; j < n; j++) {
            squares += (tn__row_load(x, i, j) - m) * (tn__row_load(x, i, j) - m);
        }
        double r = 1 / sqrt(squares / (double)n + args->eps);
        for (int64_t j = 0; j < n; j++) {
            double h = (tn__row_load(x, i, j) - m) * r;
            tn__row_store(c->y[0], i, j, h * tn__vector_load(w, j, 1) + tn__vector_load(b, j, 0));
        }
        tn__vector_store(c->y[1], i, m);
        tn__vector_store(c->y[2], i, r);
    }
    return TN_OK;
}

/* One row's dx. */
static void row_back(const tn_op_back *b, int64_t i, double m, double r, bool centred) {
    const tn_desc *x = b->x[0], *dy = b->dy[0], *w = b->x[1];
    int64_t n = x->size[1];
    double sum_g = 0, sum_gh = 0;
    for (int64_t j = 0; j < n; j++) {
        double g = tn__row_load(dy, i, j) * tn__vector_load(w, j, 1);
        sum_g += g;
        sum_gh += g * (tn__row_load(x, i, j) - m) * r;
    }
    double mean_g = centred ? sum_g / (double)n : 0, mean_gh = sum_gh / (double)n;
    for (int64_t j = 0; j < n; j++) {
        double g = tn__row_load(dy, i, j) * tn__vector_load(w, j, 1),
               h = (tn__row_load(x, i, j) - m) * r;
        tn__row_store(b->dx[0], i, j, r * (g - mean_g - h * mean_gh));
    }
}

void tn__norm_back(const tn_op_back *b, const tn_desc *mean, const tn_desc *rstd) {
    const tn_desc *x = b->x[0], *dy = b->dy[0], *dw = b->dx[1], *db = b->dx[2];
    int64_t rows = x->size[0], n = x->size[1];
    for (int64_t i = 0; i < rows && b->dx[0]; i++) {
        row_back(b, i, tn__vector_load(mean, i, 0), tn__vector_load(rstd, i, 0), mean != NULL);
    }
    for (int64_t j = 0; j < n && (dw || db); j++) {
        double sum_dw = 0, sum_db = 0;
        for (int64_t i = 0; i < rows; i++) {
            sum_dw += tn__row_load(dy, i, j) *
                      (tn__row_load(x, i, j) - tn__vector_load(mean, i, 0)) *
                      tn__vector_load(rstd, i, 0);
            sum_db += tn__row_load(dy, i, j);
        }
        tn__vector_store(dw, j, sum_dw);
        tn__vector_store(db, j, sum_db);
    }
}

static tn_status layer_norm_host_back(const tn_op_back *b) {
    tn__norm_back(b, b->y[1], b->y[2]);
    return TN_OK;
}

static tn_tensor *layer_norm_compose(tn_op_call *c) {
    const tn_norm_args *args = c->args;
    tn_tensor *x = tn__from_first(c->in[0], TN_DIMS(-1));
    tn_tensor *w = tn__optional(c, 1), *b = tn__optional(c, 2);
    tn_tensor *centred = tn_sub(x, tn_mean(x, TN_DIMS(-1), true));
    tn_tensor *var = tn_mean(tn_square(centred), TN_DIMS(-1), true);
    tn_tensor *y = tn_mul(centred, tn_rsqrt(tn_add_scalar(var, args->eps)));
    y = w ? tn_mul(y, w) : y;
    return b ? tn_add(y, b) : y;
}

const tn_op tn__op_layer_norm = {
    .name = "layer_norm",
    .inputs = {"x", "weight", "bias"},
    .args_size = sizeof(tn_norm_args),
    .fields = {TN_FIELD(tn_norm_args, eps)},
    .optional = 1u << 1 | 1u << 2,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1) | TN_SAVES_OUTPUT(2),
    .shape = layer_norm_shape,
    .kernel = TN_FUSED(layer_norm),
    .host = {layer_norm_host, layer_norm_host_back},
    .compose = layer_norm_compose,
    .flags = TN_OP_WIDE,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(0), TN_ROWS(0)},
    .adds = 1u << 0,
    .widens = 1u << 1 | 1u << 2,
    /* Each combination of weight and bias; no rows, no columns, one column (then y = b, and dx is 0
     * with a rounding error of 1 / sqrt(eps)), rows longer than a vector register. */
    .samples = "{-2:2, 0.5:1.5, -1:1} [3, 5] [5] [5] eps=1e-05; [3, 5] [5] - eps=1e-05; "
               "[3, 5] - - eps=1e-05; [3, 5] - [5] eps=1e-05; [2, 3, 4] [4] [4] eps=1e-05; "
               "[2, 3, 4] [4] - eps=1e-05; [2, 3, 4] - - eps=1e-05; [2, 3, 4] - [4] eps=1e-05; "
               "[6] [6] [6] eps=1e-05; [0, 4] [4] [4] eps=1e-05; [3, 1] [1] [1] eps=0.1; "
               "[4, 67] [67] [67] eps=1e-05; [70, 3] [3] [3] eps=1e-05; "
               "{-0.5:0.5, -1:1} [3, 5] [5] [5] eps=0.1",
};

tn_tensor *tn_layer_norm_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps) {
    return tn_apply3(&tn__op_layer_norm, &(tn_norm_args){eps}, x, weight, bias);
}
