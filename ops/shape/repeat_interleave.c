/* y = x with each slice along one dimension repeated `times` times
 *
 *     x: any dtype, any shape but 0-dimensional
 *     y: x's shape with `times` times its size at dim
 *     dx = the sum of dy's repetitions
 */
#include "ops/shape/shape.h"

typedef struct repeat_interleave_args {
    int64_t times;
    int dim;
} repeat_interleave_args;

static bool repeat_interleave_shape(tn_op_call *c) {
    const repeat_interleave_args *args = c->args;
    int dim = tn__op_dim(c, args->dim);
    tn_dims y = c->in[0]->dims;
    if (dim < 0) { return false; }
    if (args->times < 0 || __builtin_mul_overflow(y.size[dim], args->times, &y.size[dim])) {
        return tn_op_fail(c, TN_EVALUE, "x is %s but cannot be repeated %lld times",
                          tn_shape_text(c->in[0]), (long long)args->times);
    }
    return tn_op_out(c, y, c->in[0]->dtype);
}

static tn_tensor *repeat_interleave_compose(tn_op_call *c) {
    const repeat_interleave_args *args = c->args;
    tn_dims x = c->in[0]->dims, y = x;
    int dim = tn__dim_from_start(args->dim, x.ndim);
    int64_t outer = tn_dims_count(tn_dims_from(dim + 1, x.size));
    int64_t run = tn_dims_count(tn_dims_from(x.ndim - dim - 1, x.size + dim + 1));
    y.size[dim] *= args->times;
    tn_tensor *slices = tn_reshape(c->in[0], TN_DIMS(outer, 1, run));
    return tn_reshape(tn_expand(slices, TN_DIMS(outer, args->times, run)), y);
}

const tn_op tn__op_repeat_interleave = {
    .name = "repeat_interleave",
    .inputs = {"x"},
    .args_size = sizeof(repeat_interleave_args),
    .fields = {TN_FIELD_AS("repeats", repeat_interleave_args, times),
               TN_FIELD(repeat_interleave_args, dim)},
    .shape = repeat_interleave_shape,
    .compose = repeat_interleave_compose,
    .samples = "[3] repeats=2, dim=0; [3, 4] repeats=3, dim=1; [2, 3, 4] repeats=2, dim=-2; "
               "[3, 4] repeats=1, dim=0; [3, 4] repeats=0, dim=1; [3, 0] repeats=2, dim=0; "
               "[1] repeats=5, dim=0; [5, 67] repeats=2, dim=0",
};

tn_tensor *tn_repeat_interleave(tn_tensor *x, int64_t times, int dim) {
    return tn_apply1(&tn__op_repeat_interleave, &(repeat_interleave_args){times, dim}, x);
}
