/* rms_norm(x, w) = x rstd w over the last dimension            Zhang, Sennrich 2019,
 * arXiv:1910.07467
 *
 *     x: (…, C), w: (C) or absent; f32 f64 bf16 f16       y: as x
 *     rstd = 1 / sqrt(mean(x x) + eps)
 *     e = dy w:      dx = rstd (e - x rstd^2 mean(e x))      dw = sum dy x rstd
 *
 * Layer norm without its mean and bias; see layer_norm.c.
 */
#include "ops/rows.h"

typedef struct rms_norm_args {
    double eps;
} rms_norm_args;

static bool rms_norm_shape(tn_op_call *c) {
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0)) {
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
    tn__kernels k = tn__kernels_of(c);
    tn_desc y = tn__rows_of(&c->y[0], 1), rstd;
    if (c->record) {
        rstd = tn__rows_of(&c->y[1], 0);
    }
    tn__rows x;
    tn_status status = tn__rows_open(k, &c->x[0], 1, &x);
    if (status == TN_OK) {
        status = c->kernels->rms_norm(c->ctx, &y, c->record ? &rstd : NULL, &x.d,
                                      tn__optional_desc(c, 1), args->eps);
    }
    tn__rows_close(k, &x);
    return status;
}

static tn_status run_backward(tn__kernels k, tn_tensor *const *d, tn_tensor *dy, tn_tensor *x,
                              tn_tensor *w, tn_tensor *rstd) {
    tn_desc dx, dw, wd, full[3] = {tn_desc_of(dy), tn_desc_of(x), tn_desc_of(rstd)};
    if (d[0]) {
        tn_desc all = tn_desc_of(d[0]);
        dx = tn__rows_of(&all, 1);
    }
    if (d[1]) {
        dw = tn_desc_of(d[1]);
    }
    if (w) {
        wd = tn_desc_of(w);
    }
    tn_desc rstds = tn__rows_of(&full[2], 0);
    tn__rows dy_rows, x_rows = {.scratch = NULL};
    tn_status status = tn__rows_open(k, &full[0], 1, &dy_rows);
    if (status == TN_OK) {
        status = tn__rows_open(k, &full[1], 1, &x_rows);
    }
    if (status == TN_OK) {
        status = k.table->rms_norm_backward(k.ctx, d[0] ? &dx : NULL, d[1] ? &dw : NULL, &dy_rows.d,
                                            &x_rows.d, &rstds, w ? &wd : NULL);
    }
    tn__rows_close(k, &x_rows);
    tn__rows_close(k, &dy_rows);
    return status;
}

static void rms_norm_backward(tn_op_grad *g) {
    tn_tensor *x = tn_op_saved_input(g, 0), *w = tn_op_saved_input(g, 1), *dy = g->dout[0];
    tn_tensor *rstd = tn_op_saved_output(g, 1);
    tn__kernels k;
    if ((w && tn_is_inert(w)) || !tn__grad_kernels(g, (tn_tensor *[]){x, dy, rstd}, 3, &k)) {
        return;
    }
    tn_tensor *d[2];
    for (int i = 0; i < 2; i++) {
        d[i] = tn__grad_new(g, g->wants[i], tn_op_input_dims(g, i), tn_dtype_of(x));
        if (d[i] && tn_is_inert(d[i])) {
            return;
        }
    }
    if (tn__kernel_ok(run_backward(k, d, dy, x, w, rstd), g->op->name)) {
        for (int i = 0; i < 2; i++) {
            if (d[i]) {
                tn_op_give(g, i, d[i]);
            }
        }
    }
}

static tn_tensor *rms_norm_compose(const tn_op_call *c) {
    const rms_norm_args *args = c->args;
    tn_tensor *x = tn__widen(c->in[0]), *w = tn__optional(c, 1);
    tn_tensor *rstd = tn_rsqrt(tn_add_scalar(tn_mean(tn_square(x), TN_DIMS(-1), true), args->eps));
    tn_tensor *y = tn_mul(x, rstd);
    return tn_cast(w ? tn_mul(y, tn__widen(w)) : y, tn_dtype_of(c->in[0]));
}

static void rms_norm_samples(tn_op_samples *s) {
    static const rms_norm_args usual = {1e-5}, large = {0.1};
    static const tn_dims shapes[] = {{2, {3, 5}}, {3, {2, 3, 4}}, {1, {6}},    {2, {0, 4}},
                                     {2, {3, 1}}, {2, {4, 67}},   {2, {70, 3}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_dims width = TN_DIMS(shapes[i].size[shapes[i].ndim - 1]);
        tn_sample sample = {
            .text = i % 2 ? "eps=0.1" : "eps=1e-05",
            .args = i % 2 ? &large : &usual,
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
    .backward = rms_norm_backward,
    .compose = rms_norm_compose,
    .kernel = TN_KERNEL(rms_norm),
    .samples = rms_norm_samples,
};

tn_tensor *tn_rms_norm_op(tn_tensor *x, tn_tensor *weight, double eps) {
    return tn_apply2(&tn__op_rms_norm, &(rms_norm_args){eps}, x, weight);
}
