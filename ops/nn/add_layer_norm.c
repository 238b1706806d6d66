/* s = a + b and y = layer_norm(s, w, bias), over the last dimension: a residual sum and the norm
 * behind it
 *
 *     a and b: (…, C), w and bias: (C), each may be absent; f32 f64 bf16 f16       y and s: as a
 *     rstd = 1 / sqrt(var + eps), h = (s - mean) rstd, e = dy w:
 *     ds = dsum + rstd (e - mean(e) - h mean(e h)), which is a's gradient and b's
 *     dw = sum dy h        dbias = sum dy
 *
 * s is rounded to its dtype before it is normalised, so this is the two operations one after
 * another. One kernel reads and writes each row once where the device has it; elsewhere the two
 * kernels run. Of the rows only s is kept.
 */
#include "ops/rows.h"

typedef struct add_layer_norm_args {
    double eps;
} add_layer_norm_args;

enum { A, B, W, BIAS, INPUTS };
enum { Y, S, MEAN, RSTD };

static bool add_layer_norm_shape(tn_op_call *c) {
    tn_dims a = tn_shape(c->in[A]), b = tn_shape(c->in[B]);
    if (!tn_op_same_dtype(c) || !tn_op_float(c, A)) {
        return false;
    }
    if (a.ndim == 0 || !tn_dims_equal(a, b)) {
        return tn_op_fail(c, TN_ESHAPE, "a is %s and b is %s (%s)", tn_shape_text(c->in[A]),
                          tn_shape_text(c->in[B]),
                          a.ndim == 0 ? "a needs a last dimension" : "they need one shape");
    }
    for (int i = W; i <= BIAS; i++) {
        tn_tensor *t = tn__optional(c, i);
        if (t && (tn_ndim(t) != 1 || tn_size(t, 0) != a.size[a.ndim - 1])) {
            return tn_op_fail(
                c, TN_ESHAPE, "a is %s but %s is %s (it needs a's last dimension and no other)",
                tn_shape_text(c->in[A]), i == W ? "weight" : "bias", tn_shape_text(t));
        }
    }
    tn_dims rows = tn__dims_leading(a);
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(c->in[A]));
    int outputs =
        c->record ? 4 : 2; /* y, s and, for backward, the mean and 1 / deviation of each row */
    for (int i = 0; i < outputs; i++) {
        if (!(i < 2 ? tn_op_out_like(c, A) : tn_op_out(c, rows, wide))) {
            return false;
        }
    }
    return true;
}

/* y, and the statistics when they are there, from s by operations. */
static tn_status norm_composed(tn_op_call *c, double eps) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *s = tn__widen(c->out[S]), *w = tn__optional(c, W), *bias = tn__optional(c, BIAS);
    tn_tensor *mean = tn_mean(s, TN_DIMS(-1), true), *centred = tn_sub(s, mean);
    tn_tensor *var = tn_mean(tn_square(centred), TN_DIMS(-1), true);
    tn_tensor *rstd = tn_rsqrt(tn_add_scalar(var, eps)), *y = tn_mul(centred, rstd);
    y = w ? tn_mul(y, tn__widen(w)) : y;
    y = bias ? tn_add(y, tn__widen(bias)) : y;
    tn_tensor *made[] = {[Y] = y, [MEAN] = mean, [RSTD] = rstd};
    tn_status status = tn_error();
    for (int i = Y; i < c->outputs && status == TN_OK; i++) {
        if (i != S) {
            tn_desc from = tn_desc_of(tn_reshape(made[i], tn_shape(c->out[i])));
            status = c->kernels->copy(c->ctx, &c->y[i], &from);
        }
    }
    return status;
}

static tn_status add_layer_norm_forward(tn_op_call *c) {
    double eps = ((const add_layer_norm_args *)c->args)->eps;
    const tn_desc *w = tn__optional_desc(c, W), *bias = tn__optional_desc(c, BIAS);
    tn__kernels k = tn__kernels_of(c);
    tn_desc y = tn__rows_of(&c->y[Y], 1), s = tn__rows_of(&c->y[S], 1), stats[2];
    for (int i = 0; i < 2 && c->record; i++) {
        stats[i] = tn__rows_of(&c->y[MEAN + i], 0);
    }
    const tn_desc *mean = c->record ? &stats[0] : NULL, *rstd = c->record ? &stats[1] : NULL;
    if (!c->kernels->add_layer_norm) {
        tn_status status = c->kernels->binary(c->ctx, TN_ADD, &c->y[S], &c->x[A], &c->x[B]);
        if (status != TN_OK || !c->kernels->layer_norm) {
            return status == TN_OK ? norm_composed(c, eps) : status;
        }
        return c->kernels->layer_norm(c->ctx, &y, mean, rstd, &s, w, bias, eps);
    }
    tn__rows a, b = {.scratch = NULL};
    tn_status status = tn__rows_open(k, &c->x[A], 1, &a);
    if (status == TN_OK) {
        status = tn__rows_open(k, &c->x[B], 1, &b);
    }
    if (status == TN_OK) {
        status = c->kernels->add_layer_norm(c->ctx, &s, &y, mean, rstd, &a.d, &b.d, w, bias, eps);
    }
    tn__rows_close(k, &b);
    tn__rows_close(k, &a);
    return status;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Gradients by kernels: d[0] is ds, then dw and dbias; NULL: not wanted. dsum may be NULL. */
static tn_status run_backward(tn__kernels k, tn_tensor *const *d, tn_tensor *dsum, tn_tensor *dy,
                              tn_tensor *s, tn_tensor *mean, tn_tensor *rstd, tn_tensor *w) {
    tn_desc out[3], full[4] = {tn_desc_of(dy), tn_desc_of(s), {.data = NULL}, {.data = NULL}},
                    stats[2];
    const tn_desc *to[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3; i++) {
        if (d[i]) {
            out[i] = tn_desc_of(d[i]);
            out[i] = i == 0 ? tn__rows_of(&out[i], 1) : out[i];
            to[i] = &out[i];
        }
    }
    full[2] = dsum ? tn_desc_of(dsum) : full[2];
    full[3] = w ? tn_desc_of(w) : full[3];
    tn_desc means = tn_desc_of(mean), rstds = tn_desc_of(rstd);
    stats[0] = tn__rows_of(&means, 0);
    stats[1] = tn__rows_of(&rstds, 0);
    const tn_desc *weight = w ? &full[3] : NULL;
    tn__rows rows[3] = {{.scratch = NULL}, {.scratch = NULL}, {.scratch = NULL}};
    tn_status status = TN_OK;
    for (int i = 0; i < (dsum ? 3 : 2) && status == TN_OK; i++) {
        status = tn__rows_open(k, &full[i], 1, &rows[i]);
    }
    const tn_desc *sum = dsum ? &rows[2].d : NULL;
    if (status == TN_OK && k.table->add_layer_norm_backward) {
        status = k.table->add_layer_norm_backward(k.ctx, to[0], to[1], to[2], sum, &rows[0].d,
                                                  &rows[1].d, &stats[0], &stats[1], weight);
    } else if (status == TN_OK) {
        status = k.table->layer_norm_backward(k.ctx, to[0], to[1], to[2], &rows[0].d, &rows[1].d,
                                              &stats[0], &stats[1], weight);
        if (status == TN_OK && sum && to[0]) {
            status = k.table->binary(k.ctx, TN_ADD, to[0], to[0], sum);
        }
    }
    for (int i = 2; i >= 0; i--) {
        tn__rows_close(k, &rows[i]);
    }
    return status;
}

/* The same from operations: differentiable, and for devices without the kernels. */
static void backward_composed(tn_op_grad *g, tn_tensor *s, tn_tensor *w) {
    const add_layer_norm_args *args = g->args;
    tn_dtype dtype = tn_dtype_of(s);
    tn_tensor *dy = tn__widen(g->dout[Y]), *wide = tn__widen(s);
    tn_tensor *centred = tn_sub(wide, tn_mean(wide, TN_DIMS(-1), true));
    tn_tensor *var = tn_mean(tn_square(centred), TN_DIMS(-1), true);
    tn_tensor *rstd = tn_rsqrt(tn_add_scalar(var, args->eps)), *h = tn_mul(centred, rstd);
    if (g->wants[A] || g->wants[B]) {
        tn_tensor *e = w ? tn_mul(dy, tn__widen(w)) : dy;
        tn_tensor *mean_eh = tn_mean(tn_mul(e, h), TN_DIMS(-1), true);
        tn_tensor *ds = tn_sub(tn_sub(e, tn_mean(e, TN_DIMS(-1), true)), tn_mul(h, mean_eh));
        ds = tn_mul(ds, rstd);
        ds = g->dout[S] ? tn_add(ds, tn__widen(g->dout[S])) : ds;
        ds = tn_cast(ds, dtype);
        for (int i = A; i <= B; i++) {
            if (g->wants[i]) {
                tn_op_give(g, i, ds);
            }
        }
    }
    if (g->inputs > W && g->wants[W]) {
        tn_op_give(g, W, tn_cast(tn_sum_to(tn_mul(dy, h), tn_op_input_dims(g, W)), dtype));
    }
    if (g->inputs > BIAS && g->wants[BIAS]) {
        tn_op_give(g, BIAS, tn_cast(tn_sum_to(dy, tn_op_input_dims(g, BIAS)), dtype));
    }
}

static void add_layer_norm_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[Y], *dsum = g->dout[S];
    if (!dy) { /* only s was used */
        for (int i = A; i <= B; i++) {
            if (g->wants[i]) {
                tn_op_give(g, i, dsum);
            }
        }
        return;
    }
    tn_tensor *s = tn_op_saved_output(g, S), *w = tn_op_saved_input(g, W);
    tn_tensor *mean = tn_op_saved_output(g, MEAN), *rstd = tn_op_saved_output(g, RSTD);
    tn__kernels k;
    if ((w && tn_is_inert(w)) || !tn__grad_kernels(g, (tn_tensor *[]){s, dy, mean, rstd}, 4, &k)) {
        return;
    }
    if (g->create_graph || !(k.table->add_layer_norm_backward || k.table->layer_norm_backward)) {
        backward_composed(g, s, w);
        return;
    }
    bool wanted[3] = {g->wants[A] || g->wants[B], g->inputs > W && g->wants[W],
                      g->inputs > BIAS && g->wants[BIAS]};
    tn_tensor *d[3];
    for (int i = 0; i < 3; i++) {
        d[i] = tn__grad_new(g, wanted[i], tn_op_input_dims(g, i > 0 ? i + 1 : A), tn_dtype_of(s));
        if (d[i] && tn_is_inert(d[i])) {
            return;
        }
    }
    if (!tn__kernel_ok(run_backward(k, d, dsum, dy, s, mean, rstd, w), g->op->name)) {
        return;
    }
    for (int i = A; i < INPUTS; i++) {
        if (i < g->inputs && g->wants[i]) {
            tn_op_give(g, i, d[i <= B ? 0 : i - 1]);
        }
    }
}

/* Each combination of weight and bias; no rows, no columns to speak of, rows beyond a vector
 * register. */
static void add_layer_norm_samples(tn_op_samples *s) {
    static const add_layer_norm_args usual = {1e-5}, large = {0.1};
    static const tn_dims shapes[] = {{2, {3, 5}}, {3, {2, 3, 4}}, {1, {6}},    {2, {0, 4}},
                                     {2, {3, 1}}, {2, {4, 67}},   {2, {70, 3}}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        tn_dims width = TN_DIMS(shapes[i].size[shapes[i].ndim - 1]);
        tn_sample sample = {
            .text = "eps=1e-05",
            .args = &usual,
            .inputs = INPUTS,
            .in = {tn_spec_real(shapes[i], -2.0, 2.0), tn_spec_real(shapes[i], -1.0, 1.0),
                   tn_spec_real(width, 0.5, 1.5), tn_spec_real(width, -1.0, 1.0)},
        };
        if (width.size[0] == 1) { /* as in layer_norm: the norm's gradient is all rounding */
            sample.text = "eps=0.1";
            sample.args = &large;
        }
        tn_sample_add(s, &sample);
        if (i < 2) {
            sample.in[BIAS] = (tn_spec){.kind = TN_SPEC_ABSENT};
            tn_sample_add(s, &sample);
            sample.in[W] = sample.in[BIAS];
            tn_sample_add(s, &sample);
            sample.in[BIAS] = tn_spec_real(width, -1.0, 1.0);
            tn_sample_add(s, &sample);
        }
    }
}

const tn_op tn__op_add_layer_norm = {
    .name = "add_layer_norm",
    .inputs = {"a", "b", "weight", "bias"},
    .args_size = sizeof(add_layer_norm_args),
    .results = 2,
    .optional = 1u << W | 1u << BIAS,
    .saves = TN_SAVES_INPUT(W) | TN_SAVES_OUTPUT(S) | TN_SAVES_OUTPUT(MEAN) | TN_SAVES_OUTPUT(RSTD),
    .shape = add_layer_norm_shape,
    .forward = add_layer_norm_forward,
    .backward = add_layer_norm_backward,
    .samples = add_layer_norm_samples,
};

tn_tensor *tn_add_layer_norm(tn_tensor *a, tn_tensor *b, tn_tensor *weight, tn_tensor *bias,
                             double eps, tn_tensor **sum) {
    tn_tensor *in[INPUTS] = {a, b, weight, bias}, *results[TN_OP_OUTPUTS];
    tn_apply_many(&tn__op_add_layer_norm, &(add_layer_norm_args){eps}, in, INPUTS, results);
    if (sum) {
        *sum = results[S];
    }
    return results[Y];
}
