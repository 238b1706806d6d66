/* bilinear(a, b) = a W b + bias: y[o] = sum over i and j of a[i] W[o][i][j] b[j]
 *
 *     a: (…, I)   b: (…, J)   weight: (O, I, J)   bias: (O) or absent
 *     all of one dtype, f32 f64 bf16 f16       y: (…, O)
 */
#include "ops/dims.h"

/* One large product of a and all weights, then a small one with b per row. */
static tn_tensor *bilinear_compose(tn_op_call *c) {
    tn_tensor *a = c->in[0], *b = c->in[1], *w = c->in[2], *bias = tn__optional(c, 3);
    int64_t out = tn_size(w, 0), rows = tn_size(w, 1), columns = tn_size(w, 2);
    tn_dims lead = tn__dims_leading(tn_shape(a));
    int64_t n = tn_dims_count(lead);
    tn_tensor *flat = tn_reshape(tn_permute(w, TN_DIMS(1, 0, 2)), TN_DIMS(rows, out * columns));
    tn_tensor *turned = tn_matmul(tn_reshape(a, TN_DIMS(n, rows)), flat); /* (n, O J) */
    tn_tensor *y = tn_matmul(tn_reshape(turned, TN_DIMS(n, out, columns)),
                             tn_reshape(b, TN_DIMS(n, columns, 1)));
    y = tn_reshape(y, tn__dims_with_last(tn_shape(a), out));
    return bias ? tn_add(y, bias) : y;
}

const tn_op tn__op_bilinear = {
    .name = "bilinear",
    .inputs = {"a", "b", "weight", "bias"},
    .optional = 1u << 3,
    .shapes = "... i, ... j, out i j, out -> ... out",
    .compose = bilinear_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-1:1} [5, 3] [5, 4] [2, 3, 4] -; [5, 3] [5, 4] [2, 3, 4] [2]; "
               "[2, 3, 3] [2, 3, 4] [2, 3, 4] -; [2, 3, 3] [2, 3, 4] [2, 3, 4] [2]; "
               "[3] [4] [2, 3, 4] -; [3] [4] [2, 3, 4] [2]; [0, 3] [0, 4] [2, 3, 4] -; "
               "[0, 3] [0, 4] [2, 3, 4] [2]",
};

tn_tensor *tn_bilinear(tn_tensor *a, tn_tensor *b, tn_tensor *weight, tn_tensor *bias) {
    tn_tensor *in[] = {a, b, weight, bias};
    return tn_apply(&tn__op_bilinear, NULL, in, 4);
}
