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

const tn_op tn__op_embedding = {
    .name = "embedding",
    .inputs = {"weight", "index"},
    .saves = TN_SAVES_INPUT(1),
    .shapes = "any: entries width, index: ... -> ... width",
    .forward = embedding_forward,
    .backward = embedding_backward,
    .backward_kernel = embedding_backward_kernel,
    .x_rows = {0, TN_ROWS(0)},
    .y_rows = {TN_ROWS(1)},
    .widens = 1u << 0,
    .adds = 1u << 0,
    .flags = TN_OP_DY_AS_DX,
    /* An index of each number of dimensions, repeated entries, none, a width of 0 and one longer
     * than a vector register. */
    .samples = "{-1:1} [5, 3] [8]<5; [5, 3] [2, 3]<5; [4, 2] []<4; [4, 2] [2, 1, 2]<4; "
               "[3, 2] [0]<3; [3, 0] [2]<3; [1, 1] [2, 1]<1; [9, 67] [3, 4]<9",
    .work = tn__work_picked,
};

tn_tensor *tn_embedding_op(tn_tensor *weight, tn_tensor *index) {
    return tn_apply2(&tn__op_embedding, NULL, weight, index);
}
