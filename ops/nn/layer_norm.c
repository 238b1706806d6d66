/* layer_norm(x, w, b) = (x - mean) rstd w + b over the last dimension
 * (Ba, Kiros, Hinton 2016, arXiv:1607.06450)
 *
 *     x: (…, C), w and b: (C), each may be absent; f32 f64 bf16 f16       y: as x
 *     rstd = 1 / sqrt(var + eps), var = mean((x - mean)^2)
 *     h = (x - mean) rstd, e = dy w:
 *     dx = rstd (e - mean(e) - h mean(e h))        dw = sum dy h        db = sum dy
 *
 * mean and rstd, one of each a row, are kept for backward, which reads x once more and writes dx,
 * dw and db in one pass.
 */
#include "ops/dims.h"

typedef struct layer_norm_args {
    double eps;
} layer_norm_args;

static bool layer_norm_shape(tn_op_call *c) {
    const layer_norm_args *args = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0) || !tn__eps_fits(c, args->eps)) {
        return false;
    }
    if (x.ndim == 0) {
        return tn_op_fail(c, TN_ESHAPE, "x is [] (it needs a last dimension)");
    }
    for (int i = 1; i <= 2; i++) {
        tn_tensor *t = tn__optional(c, i);
        if (t && (tn_ndim(t) != 1 || tn_size(t, 0) != x.size[x.ndim - 1])) {
            return tn_op_fail(
                c, TN_ESHAPE, "x is %s but %s is %s (it needs x's last dimension and no other)",
                tn_shape_text(c->in[0]), i == 1 ? "weight" : "bias", tn_shape_text(t));
        }
    }
    if (!tn_op_out_like(c, 0)) {
        return false;
    }
    tn_dims rows = tn__dims_leading(x);
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[0]));
    bool has_mean = !c->record || tn_op_out(c, rows, wide);
    bool has_rstd = !c->record || (has_mean && tn_op_out(c, rows, wide));
    return has_mean && has_rstd;
}

static tn_status layer_norm_forward(tn_op_call *c) {
    const layer_norm_args *args = c->args;
    return c->kernels->layer_norm(c->ctx, tn_op_y(c, 0), tn_op_y(c, 1), tn_op_y(c, 2),
                                  tn_op_x(c, 0), tn_op_x(c, 1), tn_op_x(c, 2), args->eps);
}

static tn_status layer_norm_backward_kernel(const tn_op_back *b) {
    return b->kernels->layer_norm_backward(b->ctx, b->dx[0], b->dx[1], b->dx[2], b->dy[0], b->x[0],
                                           b->y[1], b->y[2], b->x[1]);
}

static tn_tensor *layer_norm_compose(tn_op_call *c) {
    const layer_norm_args *args = c->args;
    tn_tensor *x = tn__from_first(c->in[0], TN_DIMS(-1));
    tn_tensor *w = tn__optional(c, 1), *b = tn__optional(c, 2);
    tn_tensor *centred = tn_sub(x, tn_mean(x, TN_DIMS(-1), true));
    tn_tensor *var = tn_mean(tn_square(centred), TN_DIMS(-1), true);
    tn_tensor *y = tn_mul(centred, tn_rsqrt(tn_add_scalar(var, args->eps)));
    y = w ? tn_mul(y, w) : y;
    return b ? tn_add(y, b) : y;
}

/* Each combination of weight and bias; no rows, no columns, one column (then y = b), rows beyond
 * a vector register. */
static void layer_norm_samples(tn_op_samples *s) {
    static const layer_norm_args usual = {1e-5}, large = {0.1};
    static const tn_dims shapes[] = {{2, {3, 5}}, {3, {2, 3, 4}}, {1, {6}},    {2, {0, 4}},
                                     {2, {3, 1}}, {2, {4, 67}},   {2, {70, 3}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_dims width = TN_DIMS(shapes[i].size[shapes[i].ndim - 1]);
        tn_sample sample = {
            .text = "eps=1e-05",
            .args = &usual,
            .inputs = 3,
            .in = {tn_spec_real(shapes[i], -2.0, 2.0), tn_spec_real(width, 0.5, 1.5),
                   tn_spec_real(width, -1.0, 1.0)},
        };
        /* dx is 0, and its rounding is rstd = 1 / sqrt(eps) times larger */
        if (width.size[0] == 1) {
            sample.text = "eps=0.1";
            sample.args = &large;
        }
        tn_sample_add(s, &sample);
        if (i < 2) {
            sample.in[2] = (tn_spec){.kind = TN_SPEC_ABSENT};
            tn_sample_add(s, &sample);
            sample.in[1] = sample.in[2];
            tn_sample_add(s, &sample);
            sample.in[2] = tn_spec_real(width, -1.0, 1.0);
            tn_sample_add(s, &sample);
        }
    }
    tn_sample eps = {.text = "eps=0.1", .args = &large, .inputs = 3};
    eps.in[0] = tn_spec_real(TN_DIMS(3, 5), -0.5, 0.5);
    eps.in[1] = eps.in[2] = tn_spec_real(TN_DIMS(5), -1.0, 1.0);
    tn_sample_add(s, &eps);
}

const tn_op tn__op_layer_norm = {
    .name = "layer_norm",
    .inputs = {"x", "weight", "bias"},
    .args_size = sizeof(layer_norm_args),
    .fields = {TN_FIELD(layer_norm_args, eps)},
    .optional = 1u << 1 | 1u << 2,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1) | TN_SAVES_OUTPUT(2),
    .shape = layer_norm_shape,
    .forward = layer_norm_forward,
    .needs = TN_KERNEL(layer_norm),
    .compose = layer_norm_compose,
    .backward_kernel = layer_norm_backward_kernel,
    .backward_needs = TN_KERNEL(layer_norm_backward),
    .wide = true,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(0), TN_ROWS(0)},
    .widens = 1u << 1 | 1u << 2,
    .samples = layer_norm_samples,
};

tn_tensor *tn_layer_norm_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps) {
    return tn_apply3(&tn__op_layer_norm, &(layer_norm_args){eps}, x, weight, bias);
}
