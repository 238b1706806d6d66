/* put_rows(x, index, values): y = x, but y[index[i]] = values[i]; of equal indices the last wins
 *
 *     x: (n, c), index: (k), i64 or i32, values: (k, c), x's dtype, any       y: like x
 *     dx = dy, but 0 in the rows that were put
 *     dvalues[i] = dy[index[i]], or 0 if a later row overwrote it
 */
#include "ops/host.h"
#include "ops/index/index.h"

#include <string.h>

static tn_status put_rows_host(const tn_op_call *c) {
    tn_desc y = *c->y[0], values = *c->x[2];
    const tn_desc *index = c->x[1];
    tn_status status = c->kernels->copy(c->ctx, &y, c->x[0]);
    for (int64_t i = 0; i < index->size[0] && status == TN_OK; i++) {
        int64_t row = tn__host_index(index->data, index->dtype, i * index->stride[0]);
        if (row < 0 || row >= y.size[0]) {
            status = tn__host_bad_index(c->ctx, i, row);
            return tn__index_status(c, status, "index", y.size[0]);
        }
        size_t size = tn_dtype_size(y.dtype);
        for (int64_t j = 0; j < y.size[1]; j++) {
            memcpy((char *)y.data + (size_t)(row * y.stride[0] + j * y.stride[1]) * size,
                   (char *)values.data +
                       (size_t)(i * values.stride[0] + j * values.stride[1]) * size,
                   size);
        }
    }
    return status;
}

/* Whether each row of values is overwritten by a later one: (k, 1). */
static tn_tensor *rows_lost(tn_tensor *index, int64_t n) {
    int64_t k = tn_count(index);
    tn_tensor *number = tn__arange(tn_device_of(index), 0, (double)k, 1, TN_I64);
    tn_tensor *rows = tn_reshape(number, TN_DIMS(k, 1));
    tn_tensor *last = tn__put_rows(tn__filled(rows, TN_DIMS(n, 1), -1.0), index, rows);
    return tn_ne(tn_index_select(last, 0, index), rows);
}

static void put_rows_backward(tn_op_grad *g) {
    tn_tensor *index = tn_op_saved_input(g, 1), *dy = g->dout[0];
    if (g->wants[0]) {
        tn_tensor *none = tn__filled(dy, tn_op_input_dims(g, 2), 0.0);
        tn_op_give(g, 0, tn__put_rows(dy, index, none));
    }
    if (g->wants[2]) {
        tn_tensor *lost = rows_lost(index, tn_size(dy, 0));
        tn_op_give(g, 2, tn_masked_fill(tn_index_select(dy, 0, index), lost, 0.0));
    }
}

const tn_op tn__op_put_rows = {
    .name = "put_rows",
    .inputs = {"x", "index", "values"},
    .saves = TN_SAVES_INPUT(1),
    .shapes = "any: rows width, index: n, any: n width -> rows width",
    .host = {.forward = put_rows_host},
    .backward = put_rows_backward,
    /* The same row twice; none; one column. */
    .samples = "{-1:1} [5, 3] [2]<5 [2, 3]; [2, 3] [6]<2 [6, 3]; [4, 1] [3]<4 [3, 1]; "
               "[4, 2] [0]<4 [0, 2]; [1, 1] [1]<1 [1, 1]; [9, 67] [5]<9 [5, 67]",
};

tn_tensor *tn__put_rows(tn_tensor *x, tn_tensor *index, tn_tensor *values) {
    return tn_apply3(&tn__op_put_rows, NULL, x, index, values);
}
