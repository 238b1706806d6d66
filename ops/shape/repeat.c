/* y = x laid out next to itself, times[i] times along dimension i
 *
 *     x: any shape and dtype       y: each size multiplied by its times
 *     times: at least one per dimension of x; extra ones are for new leading dimensions of size 1
 *     dx = the sum of dy's repetitions
 */
#include "ops/shape/shape.h"

static bool repeat_shape(tn_op_call *c) {
    tn_dims times = ((const tn__dims_args *)c->args)->dims, x = c->in[0]->dims, y = times;
    if (times.ndim < x.ndim || times.ndim > TN_MAX_DIMS) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s but times has %d numbers (%d to %d are needed)",
                          tn_shape_text(c->in[0]), times.ndim, x.ndim, TN_MAX_DIMS);
    }
    for (int i = 0, new = times.ndim - x.ndim; i < times.ndim; i++) {
        int64_t size = i < new ? 1 : x.size[i - new];
        if (times.size[i] < 0 || __builtin_mul_overflow(size, times.size[i], &y.size[i])) {
            return tn_op_fail(c, TN_EVALUE, "x is %s but cannot be repeated %lld times (times[%d])",
                              tn_shape_text(c->in[0]), (long long)times.size[i], i);
        }
    }
    return tn_op_out(c, y, c->in[0]->dtype);
}

/* From the last dimension to the first, so that each copy is a run of memory. */
static tn_tensor *repeat_compose(tn_op_call *c) {
    tn_dims times = ((const tn__dims_args *)c->args)->dims, dims = times;
    tn_tensor *x = tn_identity(c->in[0]);
    int new = times.ndim - tn_ndim(x);
    for (int i = 0; i < times.ndim; i++) {
        dims.size[i] = i < new ? 1 : tn_size(x, i - new);
    }
    for (int i = times.ndim - 1; i >= 0; i--) {
        if (times.size[i] != 1) {
            int64_t outer = tn_dims_count(tn_dims_from(i, dims.size));
            int64_t run = tn_dims_count(tn_dims_from(dims.ndim - i, dims.size + i));
            x = tn_reshape(x, TN_DIMS(outer, 1, run));
            x = tn_expand(x, TN_DIMS(outer, times.size[i], run));
            dims.size[i] *= times.size[i];
        }
        x = tn_reshape(x, dims);
    }
    return x;
}

const tn_op tn__op_repeat = {
    .name = "repeat",
    .inputs = {"x"},
    .args_size = sizeof(tn__dims_args),
    .fields = {TN_FIELD_AS("sizes", tn__dims_args, dims)},
    .shape = repeat_shape,
    .compose = repeat_compose,
    .samples = "[3] sizes=[4]; [3, 4] sizes=[2, 1]; [3, 4] sizes=[1, 3]; [2, 3] sizes=[2, 3, 2]; "
               "[2, 3] sizes=[1, 2, 1, 1]; [3, 4] sizes=[1, 1]; [3, 4] sizes=[0, 2]; "
               "[0, 3] sizes=[2, 2]; [] sizes=[5]; [] sizes=[]; [5, 67] sizes=[2, 2]",
};

tn_tensor *tn_repeat(tn_tensor *x, tn_dims times) {
    return tn_apply1(&tn__op_repeat, &(tn__dims_args){times}, x);
}
