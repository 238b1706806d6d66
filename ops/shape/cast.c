/* y = x converted to another dtype: floats round to nearest even, float to integer truncates,
 * anything to bool is x != 0
 *
 *     x: any shape and dtype       y: x's shape, args.dtype
 *     dx = dy, converted back; only between float dtypes
 */
#include "ops/op.h"

typedef struct cast_args {
    tn_dtype dtype;
} cast_args;

static bool cast_shape(tn_op_call *c) {
    return tn_op_out(c, c->in[0]->dims, ((const cast_args *)c->args)->dtype);
}

static void cast_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_cast(g->dout[0], tn_op_input_dtype(g, 0)));
}

/* Samples go to f64 only: the suite's finite differences need its precision. */
const tn_op tn__op_cast = {
    .name = "cast",
    .inputs = {"x"},
    .args_size = sizeof(cast_args),
    .shape = cast_shape,
    .forward = tn__copy_forward,
    .backward = cast_backward,
    .samples = "*",
    .sample_args = &(const cast_args){TN_F64},
};

tn_tensor *tn_cast(tn_tensor *x, tn_dtype dtype) {
    if (tn__usable(x, "cast") && x->dtype == dtype) { return x; }
    return tn_apply1(&tn__op_cast, &(cast_args){dtype}, x);
}
