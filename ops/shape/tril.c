/* y = x on and below (tril), or above (triu), a diagonal of its last two dimensions, else 0
 *
 *     x: (…, m, n), any dtype; diagonal 0 begins at the first element, 1 one to its right
 *     y: like x
 *     dx = tril(dy), or triu(dy)
 *
 * Also holds what tril, triu and eye share.
 */
#include "ops/shape/shape.h"

typedef struct triangle_args {
    int64_t diagonal;
} triangle_args;

tn_tensor *tn__by_diagonal(tn_device device, int64_t rows, int64_t columns, int64_t diagonal,
                           tn_tensor *(*holds)(tn_tensor *column, tn_tensor *row)) {
    diagonal = diagonal < -rows ? -rows : diagonal > columns ? columns : diagonal;
    double sizes = (double)rows + (double)columns;
    tn_dtype dtype = sizes < 1 << 24 ? TN_F32 : TN_I64; /* exact, and fast to compare */
    tn_tensor *row =
        tn__arange(device, (double)diagonal, (double)diagonal + (double)rows, 1, dtype);
    tn_tensor *column = tn__arange(device, 0, (double)columns, 1, dtype);
    return holds(column, tn_unsqueeze(row, 1));
}

static tn_tensor *keep_triangle(tn_op_call *c,
                                tn_tensor *(*outside)(tn_tensor *column, tn_tensor *row)) {
    tn_tensor *x = c->in[0];
    int64_t diagonal = ((const triangle_args *)c->args)->diagonal;
    return tn_masked_fill(
        x, tn__by_diagonal(tn_device_of(x), tn_size(x, -2), tn_size(x, -1), diagonal, outside),
        0.0);
}

#define TN_TRIANGLE(op_, outside_)                                                     \
    static tn_tensor *op_##_compose(tn_op_call *c) {                                   \
        return keep_triangle(c, outside_);                                             \
    }                                                                                  \
    const tn_op tn__op_##op_ = {                                                       \
        .name = #op_,                                                                  \
        .inputs = {"x"},                                                               \
        .args_size = sizeof(triangle_args),                                            \
        .fields = {TN_FIELD(triangle_args, diagonal)},                                 \
        .shapes = "any: ... rows columns -> ... rows columns",                         \
        .compose = op_##_compose,                                                      \
        .samples = "[3, 4] diagonal=0; [4, 3] diagonal=1; [4, 3] diagonal=-2; "        \
                   "[2, 3, 3] diagonal=0; [3, 4] diagonal=100; [3, 4] diagonal=-100; " \
                   "[0, 3] diagonal=0; [1, 1] diagonal=0; [5, 67] diagonal=9",         \
    };                                                                                 \
    tn_tensor *tn_##op_(tn_tensor *x, int64_t diagonal) {                              \
        return tn_apply1(&tn__op_##op_, &(triangle_args){diagonal}, x);                \
    }

TN_TRIANGLE(tril, tn_gt)
TN_TRIANGLE(triu, tn_lt)
