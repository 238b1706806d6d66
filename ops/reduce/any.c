/* y = whether any element is true; false for no elements
 *
 *     x: any shape, bool       y: 0-dimensional, bool; no gradient
 */
#include "ops/reduce/reduce.h"

bool tn__any_shape(tn_op_call *c) {
    if (c->in[0]->dtype != TN_BOOL) {
        return tn_op_fail(c, TN_EDTYPE, "x is %s (bool is needed)", tn_dtype_name(c->in[0]->dtype));
    }
    return tn_op_out(c, TN_DIMS(), TN_BOOL);
}

static tn_status any_forward(const tn_op_call *c) {
    tn_desc y = tn__reduce_desc(c, tn__reduce_kept(c->in[0]->dims, ~0u));
    return c->kernels->reduce(c->ctx, TN_ANY, &y, c->x[0]);
}

void tn__any_samples(tn_op_samples *s) {
    static const tn_dims shapes[] = {{1, {5}}, {2, {3, 4}}, {0, {0}}, {1, {0}}, {2, {5, 67}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_sample sample = {.text = "", .inputs = 1, .in = {tn_spec_bool(shapes[i])}};
        tn_sample_add(s, &sample);
    }
    for (int i = 0; i < 2; i++) {
        tn_sample sample = {.text = "", .inputs = 1, .in = {tn_spec_bool(TN_DIMS(3))}};
        sample.in[0].low = i; /* all false, all true */
        sample.in[0].high = i + 1.0;
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_any = {
    .name = "any",
    .inputs = {"x"},
    .shape = tn__any_shape,
    .forward = any_forward,
    .add_samples = tn__any_samples,
};

tn_tensor *tn_any(tn_tensor *x) {
    return tn_apply1(&tn__op_any, NULL, x);
}
