/* linear(x, w, b) = x w^T + b
 *
 *     x: (…, in), w: (out, in), b: (out) or absent; f32 f64 bf16 f16       y: (…, out)
 *     dx = dy w        dw = dy^T x        db = column sums of dy        (x and dy as rows)
 *
 * Where the device's table has linear_backward_weight, dw and db come from one product.
 *
 * One operation and not two because the kernel adds b while the product is still in cache. Each
 * gradient keeps only what it reads: with frozen weights x is not held.
 */
#include "ops/linalg/linear.h"

bool tn__linear_shape(tn_op_call *c) {
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

/* dw and db by one kernel, where there is one: db then costs no pass over dy. */
static tn_status run_weight(tn__kernels k, tn_tensor *dw, tn_tensor *db, tn_tensor *dy,
                            tn_tensor *x) {
    tn_desc full[2] = {tn_desc_of(dy), tn_desc_of(x)}, out[2] = {tn_desc_of(dw)};
    if (db) {
        out[1] = tn_desc_of(db);
    }
    tn__rows dy_rows, x_rows = {.scratch = NULL};
    tn_status status = tn__rows_open(k, &full[0], 1, &dy_rows);
    if (status == TN_OK) {
        status = tn__rows_open(k, &full[1], 1, &x_rows);
    }
    if (status == TN_OK) {
        status = k.table->linear_backward_weight(k.ctx, &out[0], db ? &out[1] : NULL, &dy_rows.d,
                                                 &x_rows.d, false);
    }
    tn__rows_close(k, &x_rows);
    tn__rows_close(k, &dy_rows);
    return status;
}

static void weight_by_kernel(tn_op_grad *g, tn_tensor *dy, bool with_bias) {
    tn_tensor *x = tn_op_saved_input(g, 0);
    tn__kernels k;
    if (!tn__grad_kernels(g, (tn_tensor *[]){x, dy}, 2, &k)) {
        return;
    }
    tn_dtype dtype = tn_op_gradient_dtype(g, 1);
    tn_tensor *dw = tn__grad_new(g, true, tn_op_input_dims(g, 1), dtype);
    tn_tensor *db = with_bias ? tn__grad_new(g, true, tn_op_input_dims(g, 2), dtype) : NULL;
    if (tn_is_inert(dw) || (db && tn_is_inert(db))) {
        return;
    }
    if (tn__kernel_ok(run_weight(k, dw, db, dy, x), g->op->name)) {
        tn_op_give(g, 1, dw);
        if (db) {
            tn_op_give(g, 2, db);
        }
    }
}

/* dy^T x in a dtype wider than theirs, without a rounding in between; NULL when the table has no
 * such product. */
static tn_tensor *wide_product(tn_op_grad *g, tn_tensor *dy, tn_tensor *x, tn_dims dims,
                               tn_dtype dtype) {
    tn__kernels k;
    tn_tensor *dw = tn__grad_new(g, true, dims, dtype);
    if (tn_is_inert(dw) || !tn__grad_kernels(g, (tn_tensor *[]){dy, x}, 2, &k)) {
        return tn_inert();
    }
    tn_desc y = tn_desc_of(tn_unsqueeze(dw, 0)), a = tn_desc_of(tn_unsqueeze(tn_t(dy), 0)),
            b = tn_desc_of(tn_unsqueeze(x, 0));
    tn_status status = k.table->matmul(k.ctx, &y, &a, &b, 1.0, 0.0);
    if (status == TN_EUNSUPPORTED) {
        return NULL;
    }
    return tn__kernel_ok(status, g->op->name) ? dw : tn_inert();
}

/* dw = dy^T x, both as rows. */
static tn_tensor *weight_gradient(tn_op_grad *g, tn_tensor *dy, tn_tensor *x, tn_dims dims) {
    tn_dtype dtype = tn_op_gradient_dtype(g, 1);
    bool wide = dtype != tn_dtype_of(x) && !g->create_graph && !tn_is_inert(dy) && !tn_is_inert(x);
    tn_tensor *dw = wide ? wide_product(g, dy, x, dims, dtype) : NULL;
    return dw ? dw : tn_matmul(tn_t(dy), x);
}

/* Weight and bias are summed in one dtype: the kernel's. */
static bool same_gradient_dtype(const tn_op_grad *g, bool with_bias) {
    return !with_bias || tn_op_gradient_dtype(g, 1) == tn_op_gradient_dtype(g, 2);
}

void tn__linear_gradients(tn_op_grad *g, tn_tensor *dy) {
    tn_dims dx = tn_op_input_dims(g, 0), dw = tn_op_input_dims(g, 1);
    bool with_bias = g->inputs > 2 && g->wants[2];
    if (tn_is_inert(dy)) {
        return;
    }
    if (g->wants[0]) {
        tn_op_give(g, 0, tn_matmul(dy, tn_op_saved_input(g, 1)));
    }
    if (g->wants[1] && !g->create_graph && same_gradient_dtype(g, with_bias) &&
        tn_backend_of(dy->storage->device)->linear_backward_weight) {
        weight_by_kernel(g, dy, with_bias);
        return;
    }
    tn_tensor *rows = as_rows(dy, tn__dims_with_last(dx, dw.size[0])); /* (…, out), (n, out) */
    if (g->wants[1]) {
        tn_op_give(g, 1, weight_gradient(g, rows, as_rows(tn_op_saved_input(g, 0), dx), dw));
    }
    if (with_bias) {
        tn_op_give(g, 2, tn_sum(rows, TN_DIMS(0), false));
    }
}

static void linear_backward(tn_op_grad *g) {
    tn__linear_gradients(g, g->dout[0]);
}

void tn__linear_samples(tn_op_samples *s) {
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
    .inputs = {"x", "weight", "bias"},
    .optional = 1u << 2,
    .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0)},
    .shape = tn__linear_shape,
    .forward = linear_forward,
    .backward = linear_backward,
    .samples = tn__linear_samples,
};

tn_tensor *tn_linear_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return tn_apply3(&tn__op_linear, NULL, x, weight, bias);
}
