/* scatter_rows(src, index): zeros, then y[.., index[i], ..] += src[.., i, ..] at one dimension
 *
 *     src: any shape but 0-dimensional, f32 f64 bf16 f16
 *     index: (n), i64 or i32, n = src's size at dim
 *     y: src's shape with `size` at dim
 *     dsrc = index_select(dy, index)
 *
 * The gradient of index_select and embedding. Slices are added in the order of i,
 * so equal indices sum reproducibly.
 */
#include "ops/index/index.h"
#include "ops/dims.h"

typedef struct scatter_rows_args {
    int dim;
    int64_t size;
} scatter_rows_args;

static bool scatter_rows_shape(tn_op_call *c) {
    const scatter_rows_args *args = c->args;
    int dim = tn__op_dim(c, args->dim);
    if (dim < 0 || !tn_op_float(c, 0) || !tn_op_index(c, 1)) { return false; }
    tn_dims y = tn_shape(c->in[0]);
    if (tn_ndim(c->in[1]) != 1 || tn_size(c->in[1], 0) != y.size[dim]) {
        return tn_op_fail(
            c, TN_ESHAPE,
            "src is %s but index is %s (it needs one element per slice of dimension %d)",
            tn_shape_text(c->in[0]), tn_shape_text(c->in[1]), dim);
    }
    y.size[dim] = args->size;
    return tn_op_out(c, y, tn_dtype_of(c->in[0]));
}

static tn_status scatter_rows_forward(const tn_op_call *c) {
    const scatter_rows_args *args = c->args;
    int dim = tn__dim_from_start(args->dim, c->x[0]->ndim);
    tn_desc src = tn__desc_front(c->x[0], dim), y = tn__desc_front(c->y[0], dim);
    tn_status status = c->kernels->fill(c->ctx, c->y[0], 0.0);
    if (status == TN_OK) { status = c->kernels->scatter_add_rows(c->ctx, &y, c->x[1], &src); }
    return tn__index_status(c, status, "index", args->size);
}

static void scatter_rows_backward(tn_op_grad *g) {
    const scatter_rows_args *args = g->args;
    tn_op_give(g, 0, tn_index_select(g->dout[0], args->dim, tn_op_saved_input(g, 1)));
}

static void scatter_rows_samples(tn_op_samples *s) {
    static const scatter_rows_args rows = {0, 5}, columns = {1, 4}, last = {-1, 3}, one = {0, 1},
                                   long_rows = {0, 9};
    const tn_sample samples[] = {
        {.text = "dim=0, size=5",
         .args = &rows,
         .in = {tn_spec_real(TN_DIMS(7, 3), -1.0, 1.0), tn_spec_index(TN_DIMS(7), 5)}},
        {.text = "dim=1, size=4",
         .args = &columns,
         .in = {tn_spec_real(TN_DIMS(2, 3, 2), -1.0, 1.0), tn_spec_index(TN_DIMS(3), 4)}},
        {.text = "dim=-1, size=3",
         .args = &last,
         .in = {tn_spec_real(TN_DIMS(2, 6), -1.0, 1.0), tn_spec_index(TN_DIMS(6), 3)}},
        {.text = "dim=0, size=1",
         .args = &one,
         .in = {tn_spec_real(TN_DIMS(4), -1.0, 1.0), tn_spec_index(TN_DIMS(4), 1)}},
        {.text = "dim=0, size=5",
         .args = &rows,
         .in = {tn_spec_real(TN_DIMS(0, 2), -1.0, 1.0), tn_spec_index(TN_DIMS(0), 5)}},
        {.text = "dim=0, size=9",
         .args = &long_rows,
         .in = {tn_spec_real(TN_DIMS(6, 67), -1.0, 1.0), tn_spec_index(TN_DIMS(6), 9)}},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        tn_sample sample = samples[i];
        sample.inputs = 2;
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_scatter_rows = {
    .name = "scatter_rows",
    .inputs = {"src", "index"},
    .args_size = sizeof(scatter_rows_args),
    .saves = TN_SAVES_INPUT(1),
    .shape = scatter_rows_shape,
    .forward = scatter_rows_forward,
    .backward = scatter_rows_backward,
    .add_samples = scatter_rows_samples,
};

tn_tensor *tn__scatter_rows(tn_tensor *src, int dim, tn_tensor *index, int64_t size) {
    return tn_apply2(&tn__op_scatter_rows, &(scatter_rows_args){dim, size}, src, index);
}
