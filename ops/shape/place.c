/* y = zeros with x at every step-th position of one dimension: the gradient of a slice
 *
 *     x: any shape, all but bool       y: x's shape with `size` at dim
 *     dx = dy, sliced
 */
#include "ops/shape/shape.h"

typedef struct place_args {
    int dim;
    int64_t start, step, size;
} place_args;

static bool place_shape(tn_op_call *c) {
    const place_args *args = c->args;
    tn_dims dims = c->in[0]->dims;
    int dim = tn__op_dim(c, args->dim);
    if (dim < 0) { return false; }
    int64_t length = dims.size[dim];
    if (args->start < 0 || args->step < 1 ||
        (length > 0 && args->start + (length - 1) * args->step >= args->size)) {
        return tn_op_fail(c, TN_EINDEX,
                          "x is %s but dimension %d of the result is %lld (start %lld, step %lld)",
                          tn_shape_text(c->in[0]), dim, (long long)args->size,
                          (long long)args->start, (long long)args->step);
    }
    dims.size[dim] = args->size;
    return tn_op_out(c, dims, c->in[0]->dtype);
}

static tn_status place_forward(const tn_op_call *c) {
    const place_args *args = c->args;
    tn_dims x = c->in[0]->dims;
    int dim = tn__dim_from_start(args->dim, x.ndim);
    tn_status status = c->kernels->fill(c->ctx, c->y[0], 0.0);
    if (status != TN_OK) { return status; }
    tn_desc part = tn__desc_slice(c->y[0], dim, args->start, x.size[dim], args->step);
    return c->kernels->copy(c->ctx, &part, c->x[0]);
}

static void place_backward(tn_op_grad *g) {
    const place_args *args = g->args;
    tn_dims x = tn_op_input_dims(g, 0);
    int dim = tn__dim_from_start(args->dim, x.ndim);
    tn__slice_args slice = {dim, args->start, x.size[dim], args->step};
    tn_op_give(g, 0, tn_apply1(&tn__op_slice, &slice, g->dout[0]));
}

const tn_op tn__op_place = {
    .name = "place",
    .inputs = {"x"},
    .args_size = sizeof(place_args),
    .fields = {TN_FIELD(place_args, dim), TN_FIELD(place_args, start), TN_FIELD(place_args, step),
               TN_FIELD(place_args, size)},
    .shape = place_shape,
    .forward = place_forward,
    .backward = place_backward,
    .samples = "[3] dim=0, start=2, step=1, size=7; [3, 2] dim=-1, start=1, step=2, size=5; "
               "[2, 3, 4] dim=0, start=1, step=3, size=5; [0, 3] dim=0, start=1, step=1, size=2; "
               "[1] dim=0, start=0, step=1, size=1; [5, 67] dim=1, start=3, step=2, size=140",
};

void tn__give_slice(tn_op_grad *g, tn__slice_args slice, tn_tensor *dy) {
    tn_tensor *sum = tn_op_pending(g, 0);
    dy = tn_cast(dy, tn_op_gradient_dtype(g, 0));
    if (sum) {
        tn_add_(tn_apply1(&tn__op_slice, &slice, sum), dy);
        return;
    }
    tn_dims x = tn_op_input_dims(g, 0);
    int dim = tn__dim_from_start(slice.dim, x.ndim);
    place_args args = {dim, slice.start, slice.step, x.size[dim]};
    tn_op_give(g, 0, tn_apply1(&tn__op_place, &args, dy));
}
