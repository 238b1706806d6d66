/* s = a + b and y = layer_norm(s, w, bias), over the last dimension:
 * a residual sum and the norm after it
 *
 *     a and b: (…, C), w and bias: (C), each may be absent; f32 f64 bf16 f16       y and s: like a
 *     rstd = 1 / sqrt(var + eps), h = (s - mean) rstd, e = dy w:
 *     ds = dsum + rstd (e - mean(e) - h mean(e h)), which is a's gradient and b's
 *     dw = sum dy h        dbias = sum dy
 *
 * s is rounded to its dtype before it is normalised, so this equals the two operations one after
 * the other. A device's own kernel reads and writes each row once; without one, the two operations
 * run. Of the rows only s is saved.
 */
#include "ops/nn/norm.h"

enum { A, B, W, BIAS, INPUTS };
enum { Y, S, MEAN, RSTD };

/* y, s and, for backward, the mean and 1 / deviation of each row */
static bool add_layer_norm_shape(tn_op_call *c) {
    return tn__eps_fits(c, ((const tn_norm_args *)c->args)->eps) &&
           tn_op_shapes(c, "... n, ... n, n, n -> ... n, ... n, wide: ..., wide: ...");
}

static tn_tensor *add_layer_norm_compose(tn_op_call *c) {
    const tn_norm_args *args = c->args;
    tn_tensor *s = c->out[S] = tn_add(c->in[A], c->in[B]);
    return tn_layer_norm_op(s, tn__optional(c, W), tn__optional(c, BIAS), args->eps);
}

/* ---- Backward -------------------------------------------------------------------------------- */

void tn__give_sum(tn_op_grad *g, tn_tensor *ds) {
    tn_op_give(g, A, ds);
    tn_op_give(g, B, ds);
}

static void add_layer_norm_backward(tn_op_grad *g) {
    const tn_norm_args *args = g->args;
    tn_tensor *dy = g->dout[Y], *dsum = g->dout[S];
    if (!dy) { /* only s was used */
        tn__give_sum(g, dsum);
        return;
    }
    tn_tensor *s = tn_op_saved_output(g, S), *w = tn_op_saved_input(g, W);
    s = tn__from_first(s, TN_DIMS(-1));
    tn_tensor *centred = tn_sub(s, tn_mean(s, TN_DIMS(-1), true));
    tn_tensor *var = tn_mean(tn_square(centred), TN_DIMS(-1), true);
    tn_tensor *rstd = tn_rsqrt(tn_add_scalar(var, args->eps)), *h = tn_mul(centred, rstd);
    if (g->wants[A] || g->wants[B]) {
        tn_tensor *e = w ? tn_mul(dy, w) : dy;
        tn_tensor *mean_eh = tn_mean(tn_mul(e, h), TN_DIMS(-1), true);
        tn_tensor *ds = tn_sub(tn_sub(e, tn_mean(e, TN_DIMS(-1), true)), tn_mul(h, mean_eh));
        ds = tn_mul(ds, rstd);
        tn__give_sum(g, dsum ? tn_add(ds, dsum) : ds);
    }
    if (g->wants[W]) { tn_op_give(g, W, tn_mul(dy, h)); }
    if (g->wants[BIAS]) { tn_op_give(g, BIAS, dy); }
}

tn_tensor *tn__sum_dx_out(tn_op_grad *g, int i, tn_tensor *const *made) {
    return i == B ? made[A] : NULL;
}

const tn_op tn__op_add_layer_norm = {
    .name = "add_layer_norm",
    .inputs = {"a", "b", "weight", "bias"},
    .args_size = sizeof(tn_norm_args),
    .fields = {TN_FIELD(tn_norm_args, eps)},
    .results = 2,
    .optional = 1u << W | 1u << BIAS,
    .saves = TN_SAVES_INPUT(W) | TN_SAVES_OUTPUT(S) | TN_SAVES_OUTPUT(MEAN) | TN_SAVES_OUTPUT(RSTD),
    .shape = add_layer_norm_shape,
    .kernel = TN_FUSED(add_layer_norm),
    .compose = add_layer_norm_compose,
    .backward = add_layer_norm_backward,
    .flags = TN_OP_WIDE,
    .x_rows = {TN_ROWS(1), TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(1), TN_ROWS(0), TN_ROWS(0)},
    .widens = 1u << W | 1u << BIAS,
    .dx_out = tn__sum_dx_out,
    /* Each combination of weight and bias; no rows, hardly any columns, rows longer than a
     * vector register. */
    .samples = "{-2:2, -1:1, 0.5:1.5, -1:1} [3, 5] [3, 5] [5] [5] eps=1e-05; "
               "[3, 5] [3, 5] [5] - eps=1e-05; [3, 5] [3, 5] - - eps=1e-05; "
               "[3, 5] [3, 5] - [5] eps=1e-05; [2, 3, 4] [2, 3, 4] [4] [4] eps=1e-05; "
               "[2, 3, 4] [2, 3, 4] [4] - eps=1e-05; [2, 3, 4] [2, 3, 4] - - eps=1e-05; "
               "[2, 3, 4] [2, 3, 4] - [4] eps=1e-05; [6] [6] [6] [6] eps=1e-05; "
               "[0, 4] [0, 4] [4] [4] eps=1e-05; [3, 1] [3, 1] [1] [1] eps=0.1; "
               "[4, 67] [4, 67] [67] [67] eps=1e-05; [70, 3] [70, 3] [3] [3] eps=1e-05",
};

tn_tensor *tn_add_layer_norm(tn_tensor *a, tn_tensor *b, tn_tensor *weight, tn_tensor *bias,
                             double eps, tn_tensor **sum) {
    tn_tensor *in[INPUTS] = {a, b, weight, bias}, *results[TN_OP_OUTPUTS];
    tn_apply_many(&tn__op_add_layer_norm, &(tn_norm_args){eps}, in, INPUTS, results);
    if (sum) { *sum = results[S]; }
    return results[Y];
}
