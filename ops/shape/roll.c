/* y = x shifted along some dimensions; what leaves at the end re-enters at the beginning
 *
 *     x: any shape and dtype; shifts: as many as dims       y: like x
 *     dx = dy, shifted back
 *
 * Without dims x is shifted as one row of all its elements.
 */
#include "ops/shape/shape.h"

typedef struct roll_args {
    tn_dims shifts, dims;
} roll_args;

static bool roll_shape(tn_op_call *c) {
    const roll_args *args = c->args;
    int wanted = args->dims.ndim ? args->dims.ndim : 1;
    if (args->dims.ndim < 0 || args->dims.ndim > TN_MAX_DIMS || args->shifts.ndim != wanted) {
        return tn_op_fail(c, TN_EVALUE, "%d shifts are given for %d dimensions", args->shifts.ndim,
                          args->dims.ndim);
    }
    for (int i = 0; i < args->dims.ndim; i++) {
        if (tn__op_dim(c, tn__int_dim(args->dims.size[i])) < 0) { return false; }
    }
    return tn_op_out_like(c, 0);
}

/* Two slices swap places. */
static tn_tensor *roll_dim(tn_tensor *x, int64_t shift, int dim) {
    int64_t size = tn_size(x, dim);
    shift = size > 0 ? (shift % size + size) % size : 0;
    if (shift == 0) { return x; }
    tn_tensor *parts[2] = {tn_narrow(x, dim, size - shift, shift),
                           tn_narrow(x, dim, 0, size - shift)};
    return tn_cat(parts, 2, dim);
}

static tn_tensor *roll_compose(tn_op_call *c) {
    const roll_args *args = c->args;
    tn_tensor *x = tn_identity(c->in[0]);
    if (args->dims.ndim == 0) {
        tn_tensor *row = roll_dim(tn_reshape(x, TN_DIMS(-1)), args->shifts.size[0], 0);
        return tn_reshape(row, tn_shape(x));
    }
    for (int i = 0; i < args->dims.ndim; i++) {
        x = roll_dim(x, args->shifts.size[i], (int)args->dims.size[i]);
    }
    return x;
}

const tn_op tn__op_roll = {
    .name = "roll",
    .inputs = {"x"},
    .args_size = sizeof(roll_args),
    .fields = {TN_FIELD(roll_args, shifts), TN_FIELD(roll_args, dims)},
    .shape = roll_shape,
    .compose = roll_compose,
    .samples = "[7] shifts=[2], dims=[0]; [3, 4] shifts=[-1], dims=[-1]; "
               "[2, 3, 4] shifts=[1, 9], dims=[1, 2]; [3, 4] shifts=[1, 1], dims=[0, 0]; "
               "[3, 4] shifts=[5], dims=[]; [3, 4] shifts=[0], dims=[1]; "
               "[0, 3] shifts=[1], dims=[0]; [1] shifts=[3], dims=[0]; [] shifts=[3], dims=[]; "
               "[5, 67] shifts=[-70], dims=[1]",
};

tn_tensor *tn_roll(tn_tensor *x, tn_dims shifts, tn_dims dims) {
    return tn_apply1(&tn__op_roll, &(roll_args){shifts, dims}, x);
}
