/* s = a + b and y = rms_norm(s, w), over the last dimension:
 * a residual sum and the norm after it
 *
 *     a and b: (…, C), w: (C) or absent; f32 f64 bf16 f16       y and s: like a
 *     rstd = 1 / sqrt(mean(s s) + eps), h = s rstd, e = dy w:
 *     ds = dsum + rstd (e - h mean(e h)), which is a's gradient and b's        dw = sum dy h
 *
 * See add_layer_norm.c.
 */
#include "ops/nn/norm.h"

enum { A, B, W, INPUTS };
enum { Y, S, RSTD };

static bool add_rms_norm_shape(tn_op_call *c) {
    return tn__eps_fits(c, ((const tn_norm_args *)c->args)->eps) &&
           tn_op_shapes(c, "... n, ... n, n -> ... n, ... n, wide: ...");
}

static tn_tensor *add_rms_norm_compose(tn_op_call *c) {
    const tn_norm_args *args = c->args;
    tn_tensor *s = c->out[S] = tn_add(c->in[A], c->in[B]);
    return tn_rms_norm_op(s, tn__optional(c, W), args->eps);
}

/* ---- Backward -------------------------------------------------------------------------------- */

static void add_rms_norm_backward(tn_op_grad *g) {
    const tn_norm_args *args = g->args;
    tn_tensor *dy = g->dout[Y], *dsum = g->dout[S];
    if (!dy) { /* only s was used */
        tn__give_sum(g, dsum);
        return;
    }
    tn_tensor *s = tn_op_saved_output(g, S), *w = tn_op_saved_input(g, W);
    tn_tensor *squares = tn_mean(tn_square(s), TN_DIMS(-1), true);
    tn_tensor *rstd = tn_rsqrt(tn_add_scalar(squares, args->eps)), *h = tn_mul(s, rstd);
    if (g->wants[A] || g->wants[B]) {
        tn_tensor *e = w ? tn_mul(dy, w) : dy;
        tn_tensor *mean_eh = tn_mean(tn_mul(e, h), TN_DIMS(-1), true);
        tn_tensor *ds = tn_mul(tn_sub(e, tn_mul(h, mean_eh)), rstd);
        tn__give_sum(g, dsum ? tn_add(ds, dsum) : ds);
    }
    if (g->wants[W]) { tn_op_give(g, W, tn_mul(dy, h)); }
}

const tn_op tn__op_add_rms_norm = {
    .name = "add_rms_norm",
    .inputs = {"a", "b", "weight"},
    .args_size = sizeof(tn_norm_args),
    .fields = {TN_FIELD(tn_norm_args, eps)},
    .results = 2,
    .optional = 1u << W,
    .saves = TN_SAVES_INPUT(W) | TN_SAVES_OUTPUT(S) | TN_SAVES_OUTPUT(RSTD),
    .shape = add_rms_norm_shape,
    .kernel = TN_FUSED(add_rms_norm),
    .compose = add_rms_norm_compose,
    .backward = add_rms_norm_backward,
    .flags = TN_OP_WIDE,
    .x_rows = {TN_ROWS(1), TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(1), TN_ROWS(0)},
    .widens = 1u << W,
    .dx_out = tn__sum_dx_out,
    /* With and without a weight; no rows, hardly any columns, rows longer than a vector
     * register. */
    .samples = "{0.25:2, 0.25:1, 0.5:1.5} [3, 5] [3, 5] [5] eps=1e-05; [3, 5] [3, 5] - eps=1e-05; "
               "[2, 3, 4] [2, 3, 4] [4] eps=0.1; [2, 3, 4] [2, 3, 4] - eps=0.1; "
               "[6] [6] [6] eps=1e-05; [0, 4] [0, 4] [4] eps=0.1; [3, 1] [3, 1] [1] eps=0.1; "
               "[4, 67] [4, 67] [67] eps=0.1; [70, 3] [70, 3] [3] eps=1e-05",
};

tn_tensor *tn_add_rms_norm(tn_tensor *a, tn_tensor *b, tn_tensor *weight, double eps,
                           tn_tensor **sum) {
    tn_tensor *in[INPUTS] = {a, b, weight}, *results[TN_OP_OUTPUTS];
    tn_apply_many(&tn__op_add_rms_norm, &(tn_norm_args){eps}, in, INPUTS, results);
    if (sum) { *sum = results[S]; }
    return results[Y];
}
