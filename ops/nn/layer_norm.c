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
    const tn_norm_args *args = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0) || !tn__eps_fits(c, args->eps)) { return false; }
    if (x.ndim == 0) { return tn_op_fail(c, TN_ESHAPE, "x is [] (it needs a last dimension)"); }
    for (int i = 1; i <= 2; i++) {
        tn_tensor *t = tn__optional(c, i);
        if (t && (tn_ndim(t) != 1 || tn_size(t, 0) != x.size[x.ndim - 1])) {
            return tn_op_fail(
                c, TN_ESHAPE, "x is %s but %s is %s (it needs x's last dimension and no other)",
                tn_shape_text(c->in[0]), i == 1 ? "weight" : "bias", tn_shape_text(t));
        }
    }
    if (!tn_op_out_like(c, 0)) { return false; }
    tn_dims rows = tn__dims_leading(x);
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[0]));
    bool has_mean = !c->record || tn_op_out(c, rows, wide);
    bool has_rstd = !c->record || (has_mean && tn_op_out(c, rows, wide));
    return has_mean && has_rstd;
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

/* Each combination of weight and bias; no rows, no columns, one column (then y = b), rows longer
 * than a vector register. */
void tn__layer_norm_samples(tn_op_samples *s, bool added) {
    static const tn_norm_args usual = {1e-5}, large = {0.1};
    static const tn_dims shapes[] = {{2, {3, 5}}, {3, {2, 3, 4}}, {1, {6}},    {2, {0, 4}},
                                     {2, {3, 1}}, {2, {4, 67}},   {2, {70, 3}}};
    int w = added ? 2 : 1, b = w + 1;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_dims width = TN_DIMS(shapes[i].size[shapes[i].ndim - 1]);
        tn_sample sample = {
            .text = "eps=1e-05",
            .args = &usual,
            .inputs = b + 1,
            .in = {tn_spec_real(shapes[i], -2.0, 2.0), tn_spec_real(shapes[i], -1.0, 1.0)},
        };
        sample.in[w] = tn_spec_real(width, 0.5, 1.5);
        sample.in[b] = tn_spec_real(width, -1.0, 1.0);
        /* dx is 0, and its rounding error rstd = 1 / sqrt(eps) times larger */
        if (width.size[0] == 1) {
            sample.text = "eps=0.1";
            sample.args = &large;
        }
        tn_sample_add(s, &sample);
        if (i < 2) {
            sample.in[b] = (tn_spec){.kind = TN_SPEC_ABSENT};
            tn_sample_add(s, &sample);
            sample.in[w] = sample.in[b];
            tn_sample_add(s, &sample);
            sample.in[b] = tn_spec_real(width, -1.0, 1.0);
            tn_sample_add(s, &sample);
        }
    }
}

static void layer_norm_samples(tn_op_samples *s) {
    static const tn_norm_args large = {0.1};
    tn__layer_norm_samples(s, false);
    tn_sample eps = {.text = "eps=0.1", .args = &large, .inputs = 3};
    eps.in[0] = tn_spec_real(TN_DIMS(3, 5), -0.5, 0.5);
    eps.in[1] = eps.in[2] = tn_spec_real(TN_DIMS(5), -1.0, 1.0);
    tn_sample_add(s, &eps);
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
    .samples = layer_norm_samples,
};

tn_tensor *tn_layer_norm_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps) {
    return tn_apply3(&tn__op_layer_norm, &(tn_norm_args){eps}, x, weight, bias);
}
