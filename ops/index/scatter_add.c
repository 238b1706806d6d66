/* scatter_add(src, index): zeros, then y[.., index[.., j, ..], ..] += src[.., j, ..] at one dim
 *
 *     src: any shape but 0-dimensional, f32 f64 bf16 f16; index: i64 or i32, src's shape
 *     y: given, at least src's sizes but at dim
 *     dsrc = gather(dy, index)
 *
 * The gradient of gather. Elements are added in row-major order,
 * so equal indices sum reproducibly. */
#include "ops/index/index.h"
#include "ops/dims.h"

typedef struct scatter_add_args {
    int dim;
    tn_dims dims;
} scatter_add_args;

static bool scatter_add_shape(tn_op_call *c) {
    const scatter_add_args *args = c->args;
    int dim = tn__op_dim(c, args->dim);
    if (dim < 0 || !tn_op_float(c, 0) || !tn_op_index(c, 1)) { return false; }
    tn_dims src = tn_shape(c->in[0]);
    bool fits = src.ndim == args->dims.ndim && tn_dims_equal(src, tn_shape(c->in[1]));
    for (int i = 0; i < src.ndim && fits; i++) {
        fits = i == dim || src.size[i] <= args->dims.size[i];
    }
    if (!fits) {
        return tn_op_fail(
            c, TN_ESHAPE,
            "src is %s but index is %s (their shapes must be equal, and fit the result)",
            tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    return tn_op_out(c, args->dims, tn_dtype_of(c->in[0]));
}

static tn_status scatter_add_forward(const tn_op_call *c) {
    const scatter_add_args *args = c->args;
    tn_desc y = *c->y[0];
    int dim = tn__dim_from_start(args->dim, y.ndim);
    for (int i = 0; i < y.ndim; i++) {
        y.size[i] = i == dim ? y.size[i] : c->x[0]->size[i];
    }
    tn_status status = c->kernels->fill(c->ctx, c->y[0], 0.0);
    if (status == TN_OK) { status = c->kernels->scatter_add(c->ctx, &y, c->x[1], c->x[0], dim); }
    return tn__index_status(c, status, "index", y.size[dim]);
}

static void scatter_add_backward(tn_op_grad *g) {
    const scatter_add_args *args = g->args;
    tn_op_give(g, 0, tn_gather(g->dout[0], args->dim, tn_op_saved_input(g, 1)));
}

const tn_op tn__op_scatter_add = {
    .name = "scatter_add",
    .inputs = {"src", "index"},
    .args_size = sizeof(scatter_add_args),
    .fields = {TN_FIELD(scatter_add_args, dim), TN_FIELD_AS("shape", scatter_add_args, dims)},
    .saves = TN_SAVES_INPUT(1),
    .shape = scatter_add_shape,
    .forward = scatter_add_forward,
    .backward = scatter_add_backward,
    .samples = "{-1:1} [5, 3] [5, 3]<4 dim=0, shape=(4, 3); "
               "[2, 2, 3] [2, 2, 3]<4 dim=1, shape=(2, 4, 3); "
               "[2, 7] [2, 7]<5 dim=-1, shape=(3, 5); [4] [4]<1 dim=0, shape=(1,); "
               "[3, 0] [3, 0]<2 dim=1, shape=(3, 2); [3, 70] [3, 70]<67 dim=1, shape=(3, 67)",
};

tn_tensor *tn__scatter_add(tn_tensor *src, int dim, tn_tensor *index, tn_dims dims) {
    return tn_apply2(&tn__op_scatter_add, &(scatter_add_args){dim, dims}, src, index);
}

/* x plus the scattered part of src, which is what index covers. */
tn_tensor *tn_scatter_add(tn_tensor *x, int dim, tn_tensor *index, tn_tensor *src) {
    if (!tn__usable(x, "scatter_add") || !tn__usable(index, "scatter_add") ||
        !tn__usable(src, "scatter_add")) {
        return tn_inert();
    }
    TN_SCOPE;
    tn_dims dims = x->dims;
    x = tn__as_line(x);
    index = tn__as_line(index);
    src = tn__as_line(src);
    bool covers = index->dims.ndim == src->dims.ndim;
    for (int i = 0; i < index->dims.ndim && covers; i++) {
        covers = index->dims.size[i] <= src->dims.size[i];
    }
    if (!covers) {
        return tn__refused(TN_ESHAPE, "scatter_add",
                           "index is %s but src is %s (it must not be smaller)",
                           tn_shape_text(index), tn_shape_text(src));
    }
    for (int i = 0; i < index->dims.ndim; i++) {
        src = tn_narrow(src, i, 0, index->dims.size[i]);
    }
    x = tn_add(x, tn__scatter_add(src, dim, index, x->dims));
    return tn_return(dims.ndim > 0 ? x : tn_reshape(x, dims));
}
