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
    const tn_norm_args *args = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0) || !tn__eps_fits(c, args->eps)) { return false; }
    if (x.ndim == 0) { return tn_op_fail(c, TN_ESHAPE, "x is [] (it needs a last dimension)"); }
    tn_tensor *w = tn__optional(c, 1);
    if (w && (tn_ndim(w) != 1 || tn_size(w, 0) != x.size[x.ndim - 1])) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but weight is %s (it needs x's last dimension and no other)",
                          tn_shape_text(c->in[0]), tn_shape_text(w));
    }
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[0]));
    return tn_op_out_like(c, 0) && (!c->record || tn_op_out(c, tn__dims_leading(x), wide));
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

void tn__rms_norm_samples(tn_op_samples *s, bool added) {
    static const tn_norm_args usual = {1e-5}, large = {0.1};
    static const tn_dims shapes[] = {{2, {3, 5}}, {3, {2, 3, 4}}, {1, {6}},    {2, {0, 4}},
                                     {2, {3, 1}}, {2, {4, 67}},   {2, {70, 3}}};
    int w = added ? 2 : 1;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_dims width = TN_DIMS(shapes[i].size[shapes[i].ndim - 1]);
        /* one column: dx is eps rstd^3 dy w, all rounding for a small eps */
        bool wide_eps = i % 2 || width.size[0] == 1;
        tn_sample sample = {
            .text = wide_eps ? "eps=0.1" : "eps=1e-05",
            .args = wide_eps ? &large : &usual,
            .inputs = w + 1,
            .in = {tn_spec_real(shapes[i], 0.25, 2.0), tn_spec_real(shapes[i], 0.25, 1.0)},
        };
        sample.in[w] = tn_spec_real(width, 0.5, 1.5);
        tn_sample_add(s, &sample);
        if (i < 2) {
            sample.in[w] = (tn_spec){.kind = TN_SPEC_ABSENT};
            tn_sample_add(s, &sample);
        }
    }
}

static void rms_norm_samples(tn_op_samples *s) {
    tn__rms_norm_samples(s, false);
}

const tn_op tn__op_rms_norm = {
    .name = "rms_norm",
    .inputs = {"x", "weight"},
    .args_size = sizeof(tn_norm_args),
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
    .samples = rms_norm_samples,
};

tn_tensor *tn_rms_norm_op(tn_tensor *x, tn_tensor *weight, double eps) {
    return tn_apply2(&tn__op_rms_norm, &(tn_norm_args){eps}, x, weight);
}
