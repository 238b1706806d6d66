/* y = the product of x over dims
 *
 *     x: any shape and dtype       y: x's shape without dims (or 1 there); i64 for integers
 *     and bools; 1 over no elements
 *     dx = dy times the product of the other elements, zeros or not
 */
#include "ops/reduce/reduce.h"

static bool prod_shape(tn_op_call *c) {
    tn_dtype dtype = c->in[0]->dtype;
    return tn__reduce_out(c, tn_dtype_is_float(dtype) ? dtype : TN_I64);
}

/* x as a matrix: one row per result. */
static tn_tensor *result_rows(tn_tensor *x, unsigned mask) {
    tn_dims dims = tn_shape(x), order = {dims.ndim, {0}};
    int64_t count = tn__reduce_count(dims, mask), results = tn__reduce_count(dims, ~mask);
    int places = 0;
    for (unsigned goes = 0; goes < 2; goes++) {
        for (int i = 0; i < dims.ndim; i++) {
            if ((mask >> i & 1) == goes) { order.size[places++] = i; }
        }
    }
    return tn_reshape(tn_permute(x, order), TN_DIMS(results, count));
}

/* The last of each row's products. */
static tn_tensor *prod_compose(tn_op_call *c) {
    const tn__reduce_args *args = c->args;
    tn_tensor *x = c->in[0];
    unsigned mask = tn__reduce_mask(args->dims, tn_ndim(x));
    tn_tensor *rows = result_rows(tn_dtype_is_float(x->dtype) ? x : tn_cast(x, TN_I64), mask);
    int64_t count = tn_size(rows, 1);
    tn_tensor *y = count > 0 ? tn_select(tn_cumprod(rows, 1), 1, count - 1)
                             : tn_add_scalar(tn_sum(rows, TN_DIMS(1), false), 1.0);
    return tn_reshape(y, tn__reduce_left(x->dims, mask, args->keepdim));
}

TN_REDUCTION(prod, prod_shape,
             TN__REDUCE_SAMPLES("0.8:1.2") TN__REDUCE_NOTHING
             "{once} [4, 4]=(2, 0, 3, -1, 0, 2, 0, 1.5, 0, 2, 3, 4, 1, 2, 2, -1) dim=[1]",
             .compose = prod_compose, .flags = TN_OP_WIDE)

tn_tensor *tn_prod(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_apply1(&tn__op_prod, &(tn__reduce_args){dims, keepdim}, x);
}
