/* gather(x, index): y[.., j, ..] = x[.., index[.., j, ..], ..] at one dimension
 *
 *     x: any shape, any dtype; 0-dimensional counts as a line of one element
 *     index: i64 or i32, as many dimensions as x, sizes up to x's (any size at dim)
 *     y: index's shape
 *     dx = zeros with dy's elements added where they came from
 */
#include "ops/index/index.h"
#include "ops/dims.h"

typedef struct gather_args {
    int dim;
} gather_args;

static bool gather_shape(tn_op_call *c) {
    const gather_args *args = c->args;
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
    const gather_args *args = c->args;
    tn_desc x = *c->x[0];
    int dim = tn__dim_from_start(args->dim, x.ndim);
    for (int i = 0; i < x.ndim; i++) {
        x.size[i] = i == dim ? x.size[i] : c->x[1]->size[i];
    }
    return tn__index_status(c, c->kernels->gather(c->ctx, c->y[0], &x, c->x[1], dim), "index",
                            x.size[dim]);
}

static void gather_backward(tn_op_grad *g) {
    const gather_args *args = g->args;
    tn_op_give(
        g, 0,
        tn__scatter_add(g->dout[0], args->dim, tn_op_saved_input(g, 1), tn_op_input_dims(g, 0)));
}

static void gather_samples(tn_op_samples *s) {
    static const gather_args first = {0}, second = {1}, last = {-1};
    const tn_sample samples[] = {
        {.text = "dim=0",
         .args = &first,
         .in = {tn_spec_real(TN_DIMS(4, 3), -1.0, 1.0), tn_spec_index(TN_DIMS(5, 3), 4)}},
        {.text = "dim=1",
         .args = &second,
         .in = {tn_spec_real(TN_DIMS(2, 4, 3), -1.0, 1.0), tn_spec_index(TN_DIMS(2, 2, 3), 4)}},
        {.text = "dim=-1",
         .args = &last,
         .in = {tn_spec_real(TN_DIMS(3, 5), -1.0, 1.0), tn_spec_index(TN_DIMS(2, 7), 5)}},
        {.text = "dim=0",
         .args = &first,
         .in = {tn_spec_real(TN_DIMS(5), -1.0, 1.0), tn_spec_index(TN_DIMS(4), 5)}},
        {.text = "dim=0",
         .args = &first,
         .in = {tn_spec_real(TN_DIMS(1), -1.0, 1.0), tn_spec_index(TN_DIMS(1), 1)}},
        {.text = "dim=1",
         .args = &second,
         .in = {tn_spec_real(TN_DIMS(3, 2), -1.0, 1.0), tn_spec_index(TN_DIMS(3, 0), 2)}},
        {.text = "dim=1",
         .args = &second,
         .in = {tn_spec_real(TN_DIMS(3, 67), -1.0, 1.0), tn_spec_index(TN_DIMS(3, 70), 67)}},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        tn_sample sample = samples[i];
        sample.inputs = 2;
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_gather = {
    .name = "gather",
    .inputs = {"x", "index"},
    .args_size = sizeof(gather_args),
    .fields = {TN_FIELD(gather_args, dim)},
    .saves = TN_SAVES_INPUT(1),
    .shape = gather_shape,
    .forward = gather_forward,
    .backward = gather_backward,
    .add_samples = gather_samples,
    .work = tn__work_picked,
};

tn_tensor *tn_gather(tn_tensor *x, int dim, tn_tensor *index) {
    if (!tn__usable(x, "gather") || !tn__usable(index, "gather")) { return tn_inert(); }
    tn_tensor *y =
        tn_apply2(&tn__op_gather, &(gather_args){dim}, tn__as_line(x), tn__as_line(index));
    return index->dims.ndim > 0 ? y : tn_reshape(y, TN_DIMS());
}
