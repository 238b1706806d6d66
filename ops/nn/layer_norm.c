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
#include "ops/rows.h"

typedef struct layer_norm_args {
    double eps;
} layer_norm_args;

static bool layer_norm_shape(tn_op_call *c) {
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0)) {
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
    tn__kernels k = tn__kernels_of(c);
    tn_desc y = tn__rows_of(&c->y[0], 1), mean, rstd;
    if (c->record) {
        mean = tn__rows_of(&c->y[1], 0);
        rstd = tn__rows_of(&c->y[2], 0);
    }
    tn__rows x;
    tn_status status = tn__rows_open(k, &c->x[0], 1, &x);
    if (status == TN_OK) {
        status = c->kernels->layer_norm(c->ctx, &y, c->record ? &mean : NULL,
                                        c->record ? &rstd : NULL, &x.d, tn__optional_desc(c, 1),
                                        tn__optional_desc(c, 2), args->eps);
    }
    tn__rows_close(k, &x);
    return status;
}

/* The kernel's gradients from rows of dy and x. Unwanted ones are NULL. */
static tn_status run_backward(tn__kernels k, tn_tensor *const *d, tn_tensor *dy, tn_tensor *x,
                              tn_tensor *w, tn_tensor *mean, tn_tensor *rstd) {
    tn_desc out[3], full[5] = {tn_desc_of(dy), tn_desc_of(x), tn_desc_of(mean), tn_desc_of(rstd)};
    for (int i = 0; i < 3; i++) {
        if (d[i]) {
            out[i] = tn_desc_of(d[i]);
        }
    }
    if (d[0]) {
        out[0] = tn__rows_of(&out[0], 1);
    }
    if (w) {
        full[4] = tn_desc_of(w);
    }
    tn_desc means = tn__rows_of(&full[2], 0), rstds = tn__rows_of(&full[3], 0);
    tn__rows dy_rows, x_rows = {.scratch = NULL};
    tn_status status = tn__rows_open(k, &full[0], 1, &dy_rows);
    if (status == TN_OK) {
        status = tn__rows_open(k, &full[1], 1, &x_rows);
    }
    if (status == TN_OK) {
        status = k.table->layer_norm_backward(k.ctx, d[0] ? &out[0] : NULL, d[1] ? &out[1] : NULL,
                                              d[2] ? &out[2] : NULL, &dy_rows.d, &x_rows.d, &means,
                                              &rstds, w ? &full[4] : NULL);
    }
    tn__rows_close(k, &x_rows);
    tn__rows_close(k, &dy_rows);
    return status;
}

static void layer_norm_backward(tn_op_grad *g) {
    tn_tensor *x = tn_op_saved_input(g, 0), *w = tn_op_saved_input(g, 1), *dy = g->dout[0];
    tn_tensor *mean = tn_op_saved_output(g, 1), *rstd = tn_op_saved_output(g, 2);
    tn__kernels k;
    if ((w && tn_is_inert(w)) || !tn__grad_kernels(g, (tn_tensor *[]){x, dy, mean, rstd}, 4, &k)) {
        return;
    }
    tn_tensor *d[3];
    for (int i = 0; i < 3; i++) {
        d[i] = tn__grad_new(g, g->wants[i], tn_op_input_dims(g, i), tn_dtype_of(x));
        if (d[i] && tn_is_inert(d[i])) {
            return;
        }
    }
    if (tn__kernel_ok(run_backward(k, d, dy, x, w, mean, rstd), g->op->name)) {
        for (int i = 0; i < 3; i++) {
            if (d[i]) {
                tn_op_give(g, i, d[i]);
            }
        }
    }
}

static tn_tensor *layer_norm_compose(const tn_op_call *c) {
    const layer_norm_args *args = c->args;
    tn_tensor *x = tn__widen(c->in[0]), *w = tn__optional(c, 1), *b = tn__optional(c, 2);
    x = tn__from_first(x, TN_DIMS(-1));
    tn_tensor *centred = tn_sub(x, tn_mean(x, TN_DIMS(-1), true));
    tn_tensor *var = tn_mean(tn_square(centred), TN_DIMS(-1), true);
    tn_tensor *y = tn_mul(centred, tn_rsqrt(tn_add_scalar(var, args->eps)));
    y = w ? tn_mul(y, tn__widen(w)) : y;
    y = b ? tn_add(y, tn__widen(b)) : y;
    return tn_cast(y, tn_dtype_of(c->in[0]));
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
    .optional = 1u << 1 | 1u << 2,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(1) | TN_SAVES_OUTPUT(2),
    .shape = layer_norm_shape,
    .forward = layer_norm_forward,
    .backward = layer_norm_backward,
    .compose = layer_norm_compose,
    .kernel = TN_KERNEL(layer_norm),
    .samples = layer_norm_samples,
};

tn_tensor *tn_layer_norm_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps) {
    return tn_apply3(&tn__op_layer_norm, &(layer_norm_args){eps}, x, weight, bias);
}
