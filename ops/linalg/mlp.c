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
#include "autograd/operand.h"
#include "ops/linalg/linear.h"

#include <math.h>

enum { X, W1, B1, W2, B2, INPUTS };
enum { Y, P, H };

static bool mlp_shape(tn_op_call *c) {
    if (!tn_op_same_dtype(c) || !tn_op_float(c, X)) { return false; }
    tn_dims x = tn_shape(c->in[X]), w1 = tn_shape(c->in[W1]), w2 = tn_shape(c->in[W2]);
    bool fits = x.ndim > 0 && w1.ndim == 2 && w2.ndim == 2 && x.size[x.ndim - 1] == w1.size[1] &&
                w1.size[0] == w2.size[1];
    if (!fits) {
        return tn_op_fail(
            c, TN_ESHAPE,
            "x is %s, weight1 %s and weight2 %s (they must be (..., in), (hidden, in) "
            "and (out, hidden))",
            tn_shape_text(c->in[X]), tn_shape_text(c->in[W1]), tn_shape_text(c->in[W2]));
    }
    for (int i = B1; i <= B2; i += B2 - B1) {
        const tn_tensor *b = tn__optional(c, i), *w = c->in[i - 1];
        if (b && (b->dims.ndim != 1 || b->dims.size[0] != w->dims.size[0])) {
            return tn_op_fail(c, TN_ESHAPE, "%s is %s but %s is %s (one element for each row)",
                              c->op->inputs[i - 1], tn_shape_text(w), c->op->inputs[i],
                              tn_shape_text(b));
        }
    }
    tn_dims y = x, hidden = x;
    y.size[x.ndim - 1] = w2.size[0];
    hidden.size[x.ndim - 1] = w1.size[0];
    tn_dtype dtype = tn_dtype_of(c->in[X]);
    bool made = tn_op_out(c, y, dtype);
    for (int i = 0; c->record && i < 2; i++) { /* before gelu and after it */
        made = made && tn_op_out(c, hidden, dtype);
    }
    return made;
}

static tn_tensor *mlp_compose(tn_op_call *c) {
    tn_tensor *h = tn_linear_gelu(c->in[X], c->in[W1], tn__optional(c, B1));
    return tn_linear_op(h, c->in[W2], tn__optional(c, B2));
}

/* A row-major matrix in scratch memory, like x but with these columns. Its data may be NULL. */
static tn_desc scratch_matrix(tn__scratch_pool *s, const tn_desc *x, int64_t columns) {
    tn_desc d = {.dtype = x->dtype, .ndim = 2, .size = {x->size[0], columns}};
    tn__scratch_take(s, &d);
    return d;
}

static tn_status mlp_forward(const tn_op_call *c) {
    tn__scratch_pool scratch;
    tn__scratch_begin(&scratch, c->kernels, c->ctx);
    tn_desc h = c->y[H] ? *c->y[H] : scratch_matrix(&scratch, c->x[X], c->x[W1]->size[0]);
    if (!c->y[H] && !h.data) { return TN_ENOMEM; }
    tn_op_call first = *c;
    first.op = &tn__op_linear_gelu;
    first.y[0] = &h;
    first.y[1] = c->y[P];
    tn_status status = tn__op_linear_gelu.forward(&first);
    if (status == TN_OK) { status = c->kernels->linear(c->ctx, c->y[Y], &h, c->x[W2], c->x[B2]); }
    tn__scratch_end(&scratch);
    return status;
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
    tn__scratch_pool scratch;
    tn__scratch_begin(&scratch, b->kernels, b->ctx);
    tn_desc dp = scratch_matrix(&scratch, b->x[X], b->x[W1]->size[0]);
    status = dp.data ? hidden_gradient(b, &dp) : TN_ENOMEM;
    status = status == TN_OK ? tn__linear_back(b, &dp) : status;
    tn__scratch_end(&scratch);
    return status;
}

static void mlp_work(tn_op_work *w) {
    double rows = tn__work_count(w->x[X]) / fmax(1.0, (double)w->x[W1]->size[1]);
    w->flops = 2 * rows * (tn__work_count(w->x[W1]) + tn__work_count(w->x[W2]));
    w->flops *= w->wants ? 2 : 1;
}

/* With and without each bias; rows in several dimensions, none at all, no hidden units, more than a
 * kernel's block. A result of one element has positive terms: if they cancelled, as h is rounded it
 * would have no digits left in bf16, and few in f32. */
static void mlp_samples(tn_op_samples *s) {
    static const struct {
        tn_dims x;
        int64_t hidden, out;
    } shapes[] = {{{2, {3, 4}}, 5, 2},    {{3, {2, 3, 4}}, 2, 4}, {{1, {4}}, 3, 1},
                  {{2, {0, 4}}, 3, 2},    {{2, {2, 3}}, 0, 2},    {{2, {1, 1}}, 1, 1},
                  {{2, {7, 70}}, 19, 33}, {{2, {9, 16}}, 24, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t in = shapes[i].x.size[shapes[i].x.ndim - 1], hidden = shapes[i].hidden,
                out = shapes[i].out;
        double low = tn_dims_count(shapes[i].x) * out == in ? 0.25 : -1.0;
        tn_sample sample = {.text = "",
                            .inputs = INPUTS,
                            .in = {tn_spec_real(shapes[i].x, low, 1.0),
                                   tn_spec_real(TN_DIMS(hidden, in), low, 1.0),
                                   tn_spec_real(TN_DIMS(hidden), low, 1.0),
                                   tn_spec_real(TN_DIMS(out, hidden), low, 1.0),
                                   tn_spec_real(TN_DIMS(out), low, 1.0)}};
        tn_sample_add(s, &sample);
        sample.in[i % 2 ? B1 : B2] = (tn_spec){.kind = TN_SPEC_ABSENT};
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_mlp = {
    .name = "mlp",
    .inputs = {"x", "weight1", "bias1", "weight2", "bias2"},
    .optional = 1u << B1 | 1u << B2,
    .saves = TN_SAVES_INPUTS,
    .saves_for = {TN_SAVES_OUTPUT(P), TN_SAVES_OUTPUT(P), TN_SAVES_OUTPUT(P), TN_SAVES_OUTPUT(H)},
    .shape = mlp_shape,
    .kernel = TN_FUSED(mlp),
    .forward = mlp_forward,
    .compose = mlp_compose,
    .backward_kernel = mlp_backward_kernel,
    .x_rows = {TN_ROWS(1)},
    .y_rows = {TN_ROWS(1), TN_ROWS(1), TN_ROWS(1)},
    .widens = 1u << W1 | 1u << B1 | 1u << W2 | 1u << B2,
    .adds = 1u << W1 | 1u << B1 | 1u << W2 | 1u << B2,
    .samples = mlp_samples,
    .work = mlp_work,
};

tn_tensor *tn_mlp_op(tn_tensor *x, tn_tensor *weight1, tn_tensor *bias1, tn_tensor *weight2,
                     tn_tensor *bias2) {
    tn_tensor *in[INPUTS] = {x, weight1, bias1, weight2, bias2};
    return tn_apply(&tn__op_mlp, NULL, in, INPUTS);
}
