/* embedding(weight, index): y[..., :] = weight[index[...], :]
 *
 *     weight: (V, C), any dtype; index: (…), i64 or i32       y: (…, C)
 *     dweight = zeros (V, C) with dy's rows added where they came from
 *
 * A weight that is tied to the classifier has the classifier's gradient already when backward comes
 * here: the rows are then added into that one, and no second (V, C) is filled and summed.
 */
#include "ops/index/index.h"
#include "ops/rows.h"

static bool embedding_shape(tn_op_call *c) {
    tn_dims w = tn_shape(c->in[0]), y = tn_shape(c->in[1]);
    if (!tn_op_index(c, 1)) {
        return false;
    }
    if (w.ndim != 2) {
        return tn_op_fail(c, TN_ESHAPE, "weight is %s (it must have 2 dimensions: entries, width)",
                          tn_shape_text(c->in[0]));
    }
    if (y.ndim == TN_MAX_DIMS) {
        return tn_op_fail(c, TN_ESHAPE,
                          "index is %s (the result would have more than %d dimensions)",
                          tn_shape_text(c->in[1]), TN_MAX_DIMS);
    }
    y.size[y.ndim++] = w.size[1];
    return tn_op_out(c, y, tn_dtype_of(c->in[0]));
}

static tn_status embedding_forward(tn_op_call *c) {
    tn__kernels k = tn__kernels_of(c);
    tn_desc y = tn__rows_of(&c->y[0], 1);
    tn__rows index;
    tn_status status = tn__rows_open(k, &c->x[1], 0, &index);
    if (status == TN_OK) {
        status = c->kernels->gather_rows(c->ctx, &y, &c->x[0], &index.d);
    }
    tn__rows_close(k, &index);
    return tn__index_status(c, status, "index", c->x[0].size[0]);
}

/* sum[index] += dy; `sum` is this run's own. */
static void add_rows(tn_op_grad *g, tn_tensor *sum, tn_tensor *index, tn_tensor *dy) {
    tn__kernels k;
    if (!tn__grad_kernels(g, (tn_tensor *[]){sum, index, dy}, 3, &k)) {
        return;
    }
    tn_desc to = tn_desc_of(sum), at = tn_desc_of(index), from = tn_desc_of(dy);
    tn__rows rows, positions = {.scratch = NULL};
    tn_status status = tn__rows_open(k, &from, 1, &rows);
    if (status == TN_OK) {
        status = tn__rows_open(k, &at, 0, &positions);
    }
    if (status == TN_OK) {
        status = k.table->scatter_add_rows(k.ctx, &to, &positions.d, &rows.d);
    }
    tn__rows_close(k, &positions);
    tn__rows_close(k, &rows);
    tn__touch(sum);
    tn__kernel_ok(status, g->op->name);
}

static void embedding_backward(tn_op_grad *g) {
    tn_tensor *index = tn_op_saved_input(g, 1);
    tn_tensor *dy = tn_cast(g->dout[0], tn_op_gradient_dtype(g, 0)); /* small beside the weight */
    tn_tensor *sum = tn_op_pending(g, 0);
    if (sum) {
        add_rows(g, sum, index, dy);
        return;
    }
    int64_t n = tn__row_count(tn_shape(dy));
    tn_dims w = tn_op_input_dims(g, 0);
    tn_tensor *rows = tn_reshape(dy, TN_DIMS(n, w.size[1]));
    tn_op_give(g, 0, tn__scatter_rows(rows, 0, tn_reshape(index, TN_DIMS(n)), w.size[0]));
}

/* Index of each number of dimensions, repeated entries, none, a width of 0 and one beyond a
 * vector register. */
static void embedding_samples(tn_op_samples *s) {
    static const tn_dims shapes[][2] = {
        {{2, {5, 3}}, {1, {8}}},       {{2, {5, 3}}, {2, {2, 3}}},  {{2, {4, 2}}, {0, {0}}},
        {{2, {4, 2}}, {3, {2, 1, 2}}}, {{2, {3, 2}}, {1, {0}}},     {{2, {3, 0}}, {1, {2}}},
        {{2, {1, 1}}, {2, {2, 1}}},    {{2, {9, 67}}, {2, {3, 4}}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_sample sample = {
            .text = "",
            .inputs = 2,
            .in = {tn_spec_real(shapes[i][0], -1.0, 1.0),
                   tn_spec_index(shapes[i][1], shapes[i][0].size[0])},
        };
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_embedding = {
    .name = "embedding",
    .inputs = {"weight", "index"},
    .saves = TN_SAVES_INPUT(1),
    .shape = embedding_shape,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .samples = embedding_samples,
};

tn_tensor *tn_embedding_op(tn_tensor *weight, tn_tensor *index) {
    return tn_apply2(&tn__op_embedding, NULL, weight, index);
}
