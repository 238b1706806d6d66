/* y = sqrt(var(x)) over dims
 *
 *     x: any shape, f32 f64 bf16 f16
 *     y: x's shape without dims (or 1 there); like var where there are too few elements
 *     dx = dy (x - m) / (y (n - correction)), and 0 where y is 0, as in PyTorch
 */
#include "ops/reduce/reduce.h"

typedef struct std_args {
    tn__reduce_args over;
    int correction;
} std_args;

static tn_tensor *std_compose(tn_op_call *c) {
    const std_args *args = c->args;
    return tn__sqrt_or_zero(
        tn_var(c->in[0], args->over.dims, args->correction, args->over.keepdim));
}

const tn_op tn__op_std = {
    .name = "std",
    .inputs = {"x"},
    .args_size = sizeof(std_args),
    .fields = {TN_FIELD_AS("dim", std_args, over.dims),
               TN_FIELD_AS("keepdim", std_args, over.keepdim), TN_FIELD(std_args, correction)},
    .shape = tn__reduce_float,
    .compose = std_compose,
    .flags = TN_OP_WIDE,
    /* The last has equal elements, so its deviation is 0. */
    .samples = "{distinct -3:3} [7] dim=[0], correction=1, keepdim=False; "
               "[3, 4] dim=[1], correction=0, keepdim=False; "
               "[3, 4] dim=[-2], correction=1, keepdim=True; "
               "[2, 3, 4] dim=[0, 2], correction=1, keepdim=False; "
               "[0, 3] dim=[1], correction=1, keepdim=False; "
               "[2, 300] dim=[1], correction=1, keepdim=False; "
               "{once} [2, 3]=(2, 2, 2, -1, -1, -1) dim=[1], correction=0, keepdim=False",
};

tn_tensor *tn_std(tn_tensor *x, tn_dims dims, int correction, bool keepdim) {
    std_args args = {{dims, keepdim}, correction};
    return tn_apply1(&tn__op_std, &args, x);
}
