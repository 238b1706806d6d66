/* mlp(x, w1, b1, w2, b2) = gelu(x w1^T + b1) w2^T + b2, the tanh form
 *
 *     x: (…, in), w1: (hidden, in), w2: (out, hidden), f32 f64 bf16 f16
 *     b1: (hidden) and b2: (out), each may be absent
 *     y: (…, out)
 *
 * With p = x w1^T + b1 and h = gelu(p): the gradients of linear for h, w2 and b2 from dy, then with
 * dp = dh gelu'(p) those for x, w1 and b1. Only w2's reads h, and those of x, w1 and b1 read p:
 * with frozen weights (fine-tuning of what is before them, or by adapters) h is not kept.
 *
 * The MLP of a transformer, in one operation because of dp: a device's own kernel multiplies by
 * gelu' before the product dy w2 leaves the chip, so that dh is never written. The forward is
 * linear_gelu and linear, whose kernels do the rest of the gradients too.
 */
#include "ops/linalg/linear.h"

#include <math.h>

enum { X, W1, B1, W2, B2, INPUTS };
enum { Y, P, H };

static tn_tensor *mlp_compose(tn_op_call *c) {
    tn_tensor *h = tn_linear_gelu(c->in[X], c->in[W1], tn__optional(c, B1));
    return tn_linear_op(h, c->in[W2], tn__optional(c, B2));
}

/* h or dp in scratch memory. Its data may be NULL. */
static tn_desc scratch_hidden(tn__scratch_pool *s, const tn_desc *x, const tn_desc *w1) {
    return tn__scratch(s, TN_DIMS(x->size[0], w1->size[0]), x->dtype);
}

static tn_status mlp_forward(const tn_op_call *c) {
    TN__SCRATCH_POOL(scratch, c);
    tn_desc h = c->y[H] ? *c->y[H] : scratch_hidden(&scratch, c->x[X], c->x[W1]);
    if (!c->y[H] && !h.data) { return TN_ENOMEM; }
    tn_op_call first = *c;
    first.op = &tn__op_linear_gelu;
    first.y[0] = &h;
    first.y[1] = c->y[P];
    tn_status status = tn__op_linear_gelu.forward(&first);
    return status == TN_OK ? c->kernels->linear(c->ctx, c->y[Y], &h, c->x[W2], c->x[B2]) : status;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* dp = (dy w2) gelu'(p) */
static tn_status hidden_gradient(const tn_op_back *b, const tn_desc *dp) {
    tn_op_back own = *b;
    own.dx[0] = dp;
    tn_status status = tn_op_run_back(&tn__op_mlp, &own);
    if (status != TN_EUNSUPPORTED) { return status; }
    tn_desc to = tn__desc_stacked(dp), dy = tn__desc_stacked(b->dy[0]),
            w2 = tn__desc_stacked(b->x[W2]);
    status = b->kernels->matmul(b->ctx, &to, &dy, &w2, 1.0, 0.0);
    return status == TN_OK ? b->kernels->binary(b->ctx, TN_GELU_TANH_GRAD, dp, b->y[P], dp)
                           : status;
}

static tn_status mlp_backward_kernel(const tn_op_back *b) {
    tn_op_back second = *b; /* as linear's, of h */
    second.x[0] = b->y[H];
    second.x[1] = b->x[W2];
    second.dx[0] = NULL;
    second.dx[1] = b->dx[W2];
    second.dx[2] = b->dx[B2];
    tn_status status = tn__linear_back(&second, b->dy[0]);
    if (status != TN_OK || !(b->dx[X] || b->dx[W1] || b->dx[B1])) { return status; }
    TN__SCRATCH_POOL(scratch, b);
    tn_desc dp = scratch_hidden(&scratch, b->x[X], b->x[W1]);
    status = dp.data ? hidden_gradient(b, &dp) : TN_ENOMEM;
    return status == TN_OK ? tn__linear_back(b, &dp) : status;
}

static void mlp_work(tn_op_work *w) {
    double rows = tn__work_count(w->x[X]) / fmax(1.0, (double)w->x[W1]->size[1]);
    w->flops = 2 * rows * (tn__work_count(w->x[W1]) + tn__work_count(w->x[W2]));
    w->flops *= w->wants ? 2 : 1;
}

const tn_op tn__op_mlp = {
    .name = "mlp",
    .inputs = {"x", "weight1", "bias1", "weight2", "bias2"},
    .optional = 1u << B1 | 1u << B2,
    .saves = TN_SAVES_INPUTS,
    .saves_for = {TN_SAVES_OUTPUT(P), TN_SAVES_OUTPUT(P), TN_SAVES_OUTPUT(P), TN_SAVES_OUTPUT(H)},
    .shapes = "... in, hidden in, hidden, out hidden, out -> ... out, ... hidden, ... hidden",
    .kernel = TN_FUSED(mlp),
    .forward = mlp_forward,
    .compose = mlp_compose,
    .backward_kernel = mlp_backward_kernel,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(1), TN_ROWS(1)},
    .widens = 1u << W1 | 1u << B1 | 1u << W2 | 1u << B2,
    .adds = 1u << W1 | 1u << B1 | 1u << W2 | 1u << B2,
    /* With and without each bias; rows in several dimensions, none at all, no hidden units, more
     * than a kernel's block. A result of one element has positive terms: if they cancelled, as h
     * is rounded it would have no digits left in bf16, and few in f32. */
    .samples = "{-1:1} [3, 4] [5, 4] [5] [2, 5] [2]; [3, 4] [5, 4] [5] [2, 5] -; "
               "[2, 3, 4] [2, 4] [2] [4, 2] [4]; [2, 3, 4] [2, 4] - [4, 2] [4]; "
               "{0.25:1} [4] [3, 4] [3] [1, 3] [1]; [4] [3, 4] [3] [1, 3] -; "
               "{-1:1} [0, 4] [3, 4] [3] [2, 3] [2]; [0, 4] [3, 4] - [2, 3] [2]; "
               "[2, 3] [0, 3] [0] [2, 0] [2]; [2, 3] [0, 3] [0] [2, 0] -; "
               "{0.25:1} [1, 1] [1, 1] [1] [1, 1] [1]; [1, 1] [1, 1] - [1, 1] [1]; "
               "{-1:1} [7, 70] [19, 70] [19] [33, 19] [33]; [7, 70] [19, 70] [19] [33, 19] -; "
               "[9, 16] [24, 16] [24] [8, 24] [8]; [9, 16] [24, 16] - [8, 24] [8]",
    .work = mlp_work,
};

tn_tensor *tn_mlp_op(tn_tensor *x, tn_tensor *weight1, tn_tensor *bias1, tn_tensor *weight2,
                     tn_tensor *bias2) {
    tn_tensor *in[INPUTS] = {x, weight1, bias1, weight2, bias2};
    return tn_apply(&tn__op_mlp, NULL, in, INPUTS);
}
