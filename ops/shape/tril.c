/* y = x on and below a diagonal of its last two dimensions, 0 above it
 *
 *     x: (…, m, n), any dtype; diagonal 0 begins at the first element, 1 one to its right
 *     y: like x
 *     dx = tril(dy)
 *
 * Also holds what tril, triu and eye share.
 */
#include "ops/shape/shape.h"

tn_tensor *tn__by_diagonal(tn_device device, int64_t rows, int64_t columns, int64_t diagonal,
                           tn_tensor *(*holds)(tn_tensor *column, tn_tensor *row)) {
    diagonal = diagonal < -rows ? -rows : diagonal > columns ? columns : diagonal;
    double most = (double)rows + (double)columns;
    tn_dtype dtype = most < 1 << 24 ? TN_F32 : TN_I64; /* exact, and fast to compare */
    tn_tensor *row =
        tn__arange(device, (double)diagonal, (double)diagonal + (double)rows, 1, dtype);
    tn_tensor *column = tn__arange(device, 0, (double)columns, 1, dtype);
    return holds(column, tn_unsqueeze(row, 1));
}

bool tn__triangle_shape(tn_op_call *c) {
    if (tn_ndim(c->in[0]) < 2) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s but must have at least 2 dimensions",
                          tn_shape_text(c->in[0]));
    }
    return tn_op_out_like(c, 0);
}

void tn__triangle_samples(tn_op_samples *s) {
    static const struct {
        tn_dims shape;
        tn__triangle_args args;
        const char *text;
    } cases[] = {
        {{2, {3, 4}}, {0}, "diagonal=0"},     {{2, {4, 3}}, {1}, "diagonal=1"},
        {{2, {4, 3}}, {-2}, "diagonal=-2"},   {{3, {2, 3, 3}}, {0}, "diagonal=0"},
        {{2, {3, 4}}, {100}, "diagonal=100"}, {{2, {3, 4}}, {-100}, "diagonal=-100"},
        {{2, {0, 3}}, {0}, "diagonal=0"},     {{2, {1, 1}}, {0}, "diagonal=0"},
        {{2, {5, 67}}, {9}, "diagonal=9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_sample sample = {
            .text = cases[i].text,
            .args = &cases[i].args,
            .inputs = 1,
            .in = {tn_spec_real(cases[i].shape, -3.0, 3.0)},
        };
        tn_sample_add(s, &sample);
    }
}

static tn_tensor *tril_compose(tn_op_call *c) {
    const tn__triangle_args *args = c->args;
    tn_tensor *x = c->in[0];
    tn_tensor *above =
        tn__by_diagonal(tn_device_of(x), tn_size(x, -2), tn_size(x, -1), args->diagonal, tn_gt);
    return tn_masked_fill(x, above, 0.0);
}

const tn_op tn__op_tril = {
    .name = "tril",
    .inputs = {"x"},
    .args_size = sizeof(tn__triangle_args),
    .shape = tn__triangle_shape,
    .compose = tril_compose,
    .add_samples = tn__triangle_samples,
};

tn_tensor *tn_tril(tn_tensor *x, int64_t diagonal) {
    return tn_apply1(&tn__op_tril, &(tn__triangle_args){diagonal}, x);
}
