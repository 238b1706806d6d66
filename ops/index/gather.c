/* gather(x, index): y[.., j, ..] = x[.., index[.., j, ..], ..] at one dimension
 *
 *     x: any shape, any dtype; 0-dimensional counts as a line of one element
 *     index: i64 or i32, as many dimensions as x, sizes up to x's (any size at dim)
 *     y: index's shape
 *     dx = zeros with dy's elements added where they came from
 */
#include "ops/index/index.h"
#include "ops/dims.h"

static bool gather_shape(tn_op_call *c) {
    const tn__dim_args *args = c->args;
    int dim = tn__op_dim(c, args->dim);
    if (dim < 0 || !tn_op_index(c, 1)) { return false; }
    tn_dims x = tn_shape(c->in[0]), index = tn_shape(c->in[1]);
    if (x.ndim != index.ndim) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but index is %s (they need the same number of dimensions)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    for (int i = 0; i < x.ndim; i++) {
        if (i != dim && index.size[i] > x.size[i]) {
            return tn_op_fail(c, TN_ESHAPE,
                              "x is %s but index is %s (index is larger in dimension %d)",
                              tn_shape_text(c->in[0]), tn_shape_text(c->in[1]), i);
        }
    }
    return tn_op_out(c, index, tn_dtype_of(c->in[0]));
}

static tn_status gather_forward(const tn_op_call *c) {
    const tn__dim_args *args = c->args;
    tn_desc x = *c->x[0];
    int dim = tn__dim_from_start(args->dim, x.ndim);
    for (int i = 0; i < x.ndim; i++) {
        x.size[i] = i == dim ? x.size[i] : c->x[1]->size[i];
    }
    return tn__index_status(c, c->kernels->gather(c->ctx, c->y[0], &x, c->x[1], dim), "index",
                            x.size[dim]);
}

static void gather_backward(tn_op_grad *g) {
    const tn__dim_args *args = g->args;
    tn_op_give(
        g, 0,
        tn__scatter_add(g->dout[0], args->dim, tn_op_saved_input(g, 1), tn_op_input_dims(g, 0)));
}

const tn_op tn__op_gather = {
    .name = "gather",
    .inputs = {"x", "index"},
    .args_size = sizeof(tn__dim_args),
    .fields = {TN_FIELD(tn__dim_args, dim)},
    .saves = TN_SAVES_INPUT(1),
    .shape = gather_shape,
    .forward = gather_forward,
    .backward = gather_backward,
    .samples = "{-1:1} [4, 3] [5, 3]<4 dim=0; [2, 4, 3] [2, 2, 3]<4 dim=1; "
               "[3, 5] [2, 7]<5 dim=-1; [5] [4]<5 dim=0; [1] [1]<1 dim=0; [3, 2] [3, 0]<2 dim=1; "
               "[3, 67] [3, 70]<67 dim=1",
    .work = tn__work_picked,
};

tn_tensor *tn_gather(tn_tensor *x, int dim, tn_tensor *index) {
    if (!tn__usable(x, "gather") || !tn__usable(index, "gather")) { return tn_inert(); }
    tn_tensor *y =
        tn_apply2(&tn__op_gather, &(tn__dim_args){dim}, tn__as_line(x), tn__as_line(index));
    return index->dims.ndim > 0 ? y : tn_reshape(y, TN_DIMS());
}
