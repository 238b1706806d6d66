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

const tn_op tn__op_scatter_rows = {
    .name = "scatter_rows",
    .inputs = {"src", "index"},
    .args_size = sizeof(scatter_rows_args),
    .fields = {TN_FIELD(scatter_rows_args, dim), TN_FIELD(scatter_rows_args, size)},
    .saves = TN_SAVES_INPUT(1),
    .shape = scatter_rows_shape,
    .forward = scatter_rows_forward,
    .backward = scatter_rows_backward,
    .samples = "{-1:1} [7, 3] [7]<5 dim=0, size=5; [2, 3, 2] [3]<4 dim=1, size=4; "
               "[2, 6] [6]<3 dim=-1, size=3; [4] [4]<1 dim=0, size=1; [0, 2] [0]<5 dim=0, size=5; "
               "[6, 67] [6]<9 dim=0, size=9",
};

tn_tensor *tn__scatter_rows(tn_tensor *src, int dim, tn_tensor *index, int64_t size) {
    return tn_apply2(&tn__op_scatter_rows, &(scatter_rows_args){dim, size}, src, index);
}
