/* y = the largest of x over dims; NaN if there is one
 *
 *     x: any shape with elements along dims, all but bool
 *     y: x's shape without dims (or 1 there)
 *     dx = dy / n at the n elements that equal y, else 0
 */
#include "ops/reduce/reduce.h"

bool tn__max_shape(tn_op_call *c) {
    if (c->in[0]->dtype == TN_BOOL) {
        return tn_op_fail(c, TN_EDTYPE, "x is bool (a number is needed; cast it)");
    }
    return tn__reduce_nonempty(c) && tn__reduce_out(c, c->in[0]->dtype);
}

static tn_status max_forward(const tn_op_call *c) {
    return tn_count(c->in[0]) ? tn__reduce(c, TN_MAX) : TN_OK;
}

void tn__max_backward(tn_op_grad *g) {
    const tn__reduce_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0), *y = tn_op_saved_output(g, 0);
    tn_tensor *equal = tn_cast(tn_eq(x, tn__spread(g, y)), tn_dtype_of(x));
    tn_tensor *n = tn_sum(equal, args->dims, args->keepdim);
    tn_op_give(g, 0, tn_mul(equal, tn__spread(g, tn_div(g->dout[0], n))));
}

/* Distinct values, and rows in which two elements share the gradient. */
void tn__max_samples(tn_op_samples *s) {
    static const double ties[] = {2.0, -3.0, 2.0, -3.0, 1.0, 1.0, 1.0, 1.0};
    static const tn__reduce_args args = {{1, {1}}, false};
    tn_sample sample = {
        .text = "dim=[1], keepdim=False",
        .args = &args,
        .inputs = 1,
        .in = {tn_spec_values(TN_DIMS(4, 2), ties)},
        .no_second = true,
    };
    tn__sample_reduce(s, -3.0, 3.0, false);
    tn_sample_add(s, &sample);
}

const tn_op tn__op_max = {
    .name = "max",
    .inputs = {"x"},
    .args_size = sizeof(tn__reduce_args),
    .fields = {TN_FIELD(tn__reduce_args, dims), TN_FIELD(tn__reduce_args, keepdim)},
    .saves = TN_SAVES_INPUT(0) | TN_SAVES_OUTPUT(0),
    .shape = tn__max_shape,
    .forward = max_forward,
    .backward = tn__max_backward,
    .flags = TN_OP_WIDE,
    .add_samples = tn__max_samples,
};

tn_tensor *tn_max(tn_tensor *x, tn_dims dims, bool keepdim) {
    tn__reduce_args args = {dims, keepdim};
    return tn_apply1(&tn__op_max, &args, x);
}
