/* index_select(x, index): y[.., i, ..] = x[.., index[i], ..] at one dimension
 *
 *     x: any shape but 0-dimensional, any dtype; index: (n), i64 or i32
 *     y: x's shape with n at dim
 *     dx = zeros with dy's slices added where they came from
 *
 * The kernel picks rows; a descriptor with dim moved to the front turns slices into rows.
 */
#include "ops/index/index.h"
#include "ops/dims.h"

static bool index_select_shape(tn_op_call *c) {
    int dim = tn__op_dim(c, ((const tn__dim_args *)c->args)->dim);
    if (dim < 0 || !tn_op_shapes(c, "any: ..., index: n")) { return false; }
    tn_dims y = tn_shape(c->in[0]);
    y.size[dim] = tn_size(c->in[1], 0);
    return tn_op_out(c, y, tn_dtype_of(c->in[0]));
}

static tn_status index_select_forward(const tn_op_call *c) {
    const tn__dim_args *args = c->args;
    int dim = tn__dim_from_start(args->dim, c->x[0]->ndim);
    tn_desc x = tn__desc_front(c->x[0], dim), y = tn__desc_front(c->y[0], dim);
    return tn__index_status(c, c->kernels->gather_rows(c->ctx, &y, &x, c->x[1]), "index",
                            x.size[0]);
}

static void index_select_backward(tn_op_grad *g) {
    const tn__dim_args *args = g->args;
    tn_dims x = tn_op_input_dims(g, 0);
    int dim = tn__dim_from_start(args->dim, x.ndim);
    tn_op_give(g, 0, tn__scatter_rows(g->dout[0], dim, tn_op_saved_input(g, 1), x.size[dim]));
}

const tn_op tn__op_index_select = {
    .name = "index_select",
    .inputs = {"x", "index"},
    .args_size = sizeof(tn__dim_args),
    .fields = {TN_FIELD(tn__dim_args, dim)},
    .saves = TN_SAVES_INPUT(1),
    .shape = index_select_shape,
    .forward = index_select_forward,
    .backward = index_select_backward,
    /* Each dimension; a repeated index (the gradient adds up), none, and rows longer than a
     * vector register. */
    .samples = "{-1:1} [4, 3] [6]<4 dim=0; [2, 4, 3] [3]<4 dim=1; [2, 3] [5]<3 dim=-1; "
               "[5] [4]<5 dim=0; [1] [3]<1 dim=0; [3, 2] [0]<3 dim=0; [3, 0] [2]<3 dim=0; "
               "[9, 67] [5]<9 dim=0",
    .work = tn__work_picked,
};

tn_tensor *tn_index_select(tn_tensor *x, int dim, tn_tensor *index) {
    return tn_apply2(&tn__op_index_select, &(tn__dim_args){dim}, x, index);
}
