/* embedding(weight, index): y[..., :] = weight[index[...], :]
 *
 *     weight: (V, C), any dtype; index: (…), i64 or i32       y: (…, C)
 *     dweight = zeros (V, C) with dy's rows added where they came from
 *
 * A weight tied to the classifier already has the classifier's gradient when backward gets here:
 * the rows are then added to it, and no second (V, C) is filled and summed. They are converted to
 * its dtype first: they are small next to the weight.
 */
#include "ops/index/index.h"
#include "ops/dims.h"

static bool embedding_shape(tn_op_call *c) {
    tn_dims w = tn_shape(c->in[0]), y = tn_shape(c->in[1]);
    if (!tn_op_index(c, 1)) { return false; }
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

static tn_status embedding_forward(const tn_op_call *c) {
    tn_status status = c->kernels->gather_rows(c->ctx, c->y[0], c->x[0], c->x[1]);
    return tn__index_status(c, status, "index", c->x[0]->size[0]);
}

static void embedding_backward(tn_op_grad *g) {
    tn_tensor *index = tn_op_saved_input(g, 1), *dy = g->dout[0];
    int64_t n = tn__row_count(tn_shape(dy));
    tn_dims w = tn_op_input_dims(g, 0);
    tn_tensor *rows = tn_reshape(dy, TN_DIMS(n, w.size[1]));
    tn_op_give(g, 0, tn__scatter_rows(rows, 0, tn_reshape(index, TN_DIMS(n)), w.size[0]));
}

static tn_status embedding_backward_kernel(const tn_op_back *b) {
    tn_status status = b->adds ? TN_OK : b->kernels->fill(b->ctx, b->dx[0], 0.0);
    return status == TN_OK ? b->kernels->scatter_add_rows(b->ctx, b->dx[0], b->x[1], b->dy[0])
                           : status;
}

/* An index of each number of dimensions, repeated entries, none, a width of 0 and one longer than a
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
    .backward_kernel = embedding_backward_kernel,
    .x_rows = {0, TN_ROWS(0)},
    .y_rows = {TN_ROWS(1)},
    .widens = 1u << 0,
    .adds = 1u << 0,
    .flags = TN_OP_DY_AS_DX,
    .samples = embedding_samples,
    .work = tn__work_picked,
};

tn_tensor *tn_embedding_op(tn_tensor *weight, tn_tensor *index) {
    return tn_apply2(&tn__op_embedding, NULL, weight, index);
}
