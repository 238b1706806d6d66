/* linear(x, w, b) = x w^T + b
 *
 *     x: (…, in), w: (out, in), b: (out) or absent; f32 f64 bf16 f16       y: (…, out)
 *     dx = dy w        dw = dy^T x        db = column sums of dy        (x and dy as rows)
 *
 * One operation and not two because the kernel adds b while the product is still in cache. Each
 * gradient keeps only what it reads: with frozen weights x is not held.
 */
#include "ops/rows.h"

static bool linear_shape(tn_op_call *c) {
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0)) {
        return false;
    }
    tn_dims x = tn_shape(c->in[0]), w = tn_shape(c->in[1]);
    if (w.ndim != 2) {
        return tn_op_fail(c, TN_ESHAPE, "weight is %s (it must have 2 dimensions: out, in)",
                          tn_shape_text(c->in[1]));
    }
    if (x.ndim == 0 || x.size[x.ndim - 1] != w.size[1]) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but weight is %s (the last dimensions must be equal)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    tn_tensor *b = tn__optional(c, 2);
    if (b && (tn_ndim(b) != 1 || tn_size(b, 0) != w.size[0])) {
        return tn_op_fail(c, TN_ESHAPE,
                          "weight is %s but bias is %s (bias needs one element a row of weight)",
                          tn_shape_text(c->in[1]), tn_shape_text(b));
    }
    return tn_op_out(c, tn__dims_with_last(x, w.size[0]), c->in[0]->dtype);
}

static tn_tensor *linear_compose(const tn_op_call *c) {
    tn_tensor *y = tn_matmul(c->in[0], tn_t(c->in[1]));
    return tn__optional(c, 2) ? tn_add(y, c->in[2]) : y;
}

static tn_status linear_forward(tn_op_call *c) {
    if (!c->kernels->linear) {
        return tn__forward_composed(c, linear_compose);
    }
    tn__kernels k = tn__kernels_of(c);
    tn_desc y = tn__rows_of(&c->y[0], 1);
    tn__rows x;
    tn_status status = tn__rows_open(k, &c->x[0], 1, &x);
    if (status == TN_OK) {
        status = c->kernels->linear(c->ctx, &y, &x.d, &c->x[1], tn__optional_desc(c, 2));
    }
    tn__rows_close(k, &x);
    return status;
}

static tn_tensor *as_rows(tn_tensor *x, tn_dims d) {
    return d.ndim == 2 ? x : tn_reshape(x, TN_DIMS(tn__row_count(d), d.size[d.ndim - 1]));
}

static void linear_backward(tn_op_grad *g) {
    tn_dims dx = tn_op_input_dims(g, 0), dw = tn_op_input_dims(g, 1);
    tn_tensor *dy = g->dout[0],
              *rows = as_rows(dy, tn__dims_with_last(dx, dw.size[0])); /* (…, out), (n, out) */
    if (g->wants[0]) {
        tn_op_give(g, 0, tn_matmul(dy, tn_op_saved_input(g, 1)));
    }
    if (g->wants[1]) {
        tn_op_give(g, 1, tn_matmul(tn_t(rows), as_rows(tn_op_saved_input(g, 0), dx)));
    }
    if (g->inputs > 2 && g->wants[2]) {
        tn_op_give(g, 2, tn_sum(rows, TN_DIMS(0), false));
    }
}

static void linear_samples(tn_sampler *s) {
    static const tn_dims shapes[][2] = {
        {{2, {3, 4}}, {2, {5, 4}}}, {{1, {4}}, {2, {3, 4}}},          {{3, {2, 3, 4}}, {2, {2, 4}}},
        {{2, {0, 4}}, {2, {3, 4}}}, {{2, {2, 0}}, {2, {3, 0}}},       {{2, {3, 2}}, {2, {0, 2}}},
        {{2, {1, 1}}, {2, {1, 1}}}, {{4, {2, 1, 2, 3}}, {2, {4, 3}}}, {{2, {7, 70}}, {2, {19, 70}}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_sample sample = {
            .text = "",
            .inputs = 3,
            .in = {tn_spec_real(shapes[i][0], -1.0, 1.0), tn_spec_real(shapes[i][1], -1.0, 1.0),
                   tn_spec_real(TN_DIMS(shapes[i][1].size[0]), -1.0, 1.0)},
        };
        tn_sample_add(s, &sample);
        sample.in[2] = (tn_spec){.kind = TN_SPEC_ABSENT};
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_linear = {
    .name = "linear",
    .optional = 1u << 2,
    .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0)},
    .shape = linear_shape,
    .forward = linear_forward,
    .backward = linear_backward,
    .samples = linear_samples,
};

tn_tensor *tn_linear_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return tn_apply3(&tn__op_linear, NULL, x, weight, bias);
}
