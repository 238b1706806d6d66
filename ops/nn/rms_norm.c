/* rms_norm(x, w) = x rstd w over the last dimension
 * (Zhang, Sennrich 2019, arXiv:1910.07467)
 *
 *     x: (…, C), w: (C) or absent; f32 f64 bf16 f16       y: as x
 *     rstd = 1 / sqrt(mean(x x) + eps)
 *     e = dy w:      dx = rstd (e - x rstd^2 mean(e x))      dw = sum dy x rstd
 *
 * Layer norm without its mean and bias; see layer_norm.c.
 */
#include "ops/dims.h"

typedef struct rms_norm_args {
    double eps;
} rms_norm_args;

static bool rms_norm_shape(tn_op_call *c) {
    const rms_norm_args *args = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0) || !tn__eps_fits(c, args->eps)) {
        return false;
    }
    if (x.ndim == 0) {
        return tn_op_fail(c, TN_ESHAPE, "x is [] (it needs a last dimension)");
    }
    tn_tensor *w = tn__optional(c, 1);
    if (w && (tn_ndim(w) != 1 || tn_size(w, 0) != x.size[x.ndim - 1])) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but weight is %s (it needs x's last dimension and no other)",
                          tn_shape_text(c->in[0]), tn_shape_text(w));
    }
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[0]));
    return tn_op_out_like(c, 0) && (!c->record || tn_op_out(c, tn__dims_leading(x), wide));
}

static tn_status rms_norm_forward(tn_op_call *c) {
    const rms_norm_args *args = c->args;
    return c->kernels->rms_norm(c->ctx, tn_op_y(c, 0), tn_op_y(c, 1), tn_op_x(c, 0), tn_op_x(c, 1),
                                args->eps);
}

static tn_status rms_norm_backward_kernel(const tn_op_back *b) {
    return b->kernels->rms_norm_backward(b->ctx, b->dx[0], b->dx[1], b->dy[0], b->x[0], b->y[1],
                                         b->x[1]);
}

static tn_tensor *rms_norm_compose(tn_op_call *c) {
    const rms_norm_args *args = c->args;
    tn_tensor *x = c->in[0], *w = tn__optional(c, 1);
    tn_tensor *rstd = tn_rsqrt(tn_add_scalar(tn_mean(tn_square(x), TN_DIMS(-1), true), args->eps));
    tn_tensor *y = tn_mul(x, rstd);
    return w ? tn_mul(y, w) : y;
}

static void rms_norm_samples(tn_op_samples *s) {
    static const rms_norm_args usual = {1e-5}, large = {0.1};
    static const tn_dims shapes[] = {{2, {3, 5}}, {3, {2, 3, 4}}, {1, {6}},    {2, {0, 4}},
                                     {2, {3, 1}}, {2, {4, 67}},   {2, {70, 3}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_dims width = TN_DIMS(shapes[i].size[shapes[i].ndim - 1]);
        /* one column: dx is eps rstd^3 dy w, and for a small eps all rounding */
        bool wide_eps = i % 2 || width.size[0] == 1;
        tn_sample sample = {
            .text = wide_eps ? "eps=0.1" : "eps=1e-05",
            .args = wide_eps ? &large : &usual,
            .inputs = 2,
            .in = {tn_spec_real(shapes[i], 0.25, 2.0), tn_spec_real(width, 0.5, 1.5)},
        };
        tn_sample_add(s, &sample);
        if (i < 2) {
            sample.in[1] = (tn_spec){.kind = TN_SPEC_ABSENT};
            tn_sample_add(s, &sample);
        }
    }
}

const tn_op tn__op_rms_norm = {
    .name = "rms_norm",
    .inputs = {"x", "weight"},
    .args_size = sizeof(rms_norm_args),
    .optional = 1u << 1,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1),
    .shape = rms_norm_shape,
    .forward = rms_norm_forward,
    .needs = TN_KERNEL(rms_norm),
    .compose = rms_norm_compose,
    .backward_kernel = rms_norm_backward_kernel,
    .backward_needs = TN_KERNEL(rms_norm_backward),
    .wide = true,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(0)},
    .widens = 1u << 1,
    .samples = rms_norm_samples,
};

tn_tensor *tn_rms_norm_op(tn_tensor *x, tn_tensor *weight, double eps) {
    return tn_apply2(&tn__op_rms_norm, &(rms_norm_args){eps}, x, weight);
}
