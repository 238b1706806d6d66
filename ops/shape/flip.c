/* y = x with the order of its elements reversed along some dimensions
 *
 *     x: any shape and dtype       y: like x
 *     dx = dy, reversed too
 */
#include "ops/reduce/reduce.h"

static bool flip_shape(tn_op_call *c) {
    return tn__reduce_checked(c, ((const tn__dims_args *)c->args)->dims) && tn_op_out_like(c, 0);
}

static tn_tensor *flip_compose(tn_op_call *c) {
    tn_tensor *y = tn_identity(c->in[0]);
    tn_dims dims = ((const tn__dims_args *)c->args)->dims;
    unsigned mask = dims.ndim ? tn__reduce_mask(dims, tn_ndim(y)) : 0;
    for (int i = 0; i < tn_ndim(y); i++) {
        double n = (double)tn_size(y, i);
        if (mask >> i & 1 && n > 1) {
            y = tn_index_select(y, i, tn__arange(tn_device_of(y), n - 1, -1, -1, TN_I64));
        }
    }
    return y;
}

const tn_op tn__op_flip = {
    .name = "flip",
    .inputs = {"x"},
    .args_size = sizeof(tn__dims_args),
    .fields = {TN_FIELD(tn__dims_args, dims)},
    .shape = flip_shape,
    .compose = flip_compose,
    .samples = "[7] dims=[0]; [3, 4] dims=[-1]; [2, 3, 4] dims=[0, 2]; [2, 3, 4] dims=[2, 1, 0]; "
               "[3, 4] dims=[]; [0, 3] dims=[0, 1]; [1] dims=[0]; [] dims=[-1]; [5, 67] dims=[1]",
};

tn_tensor *tn_flip(tn_tensor *x, tn_dims dims) {
    return tn_apply1(&tn__op_flip, &(tn__dims_args){dims}, x);
}
