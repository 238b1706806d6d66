/* Reductions and shapes of losses (loss.h). */
#include "ops/loss/loss.h"

#include "ops/dims.h"

const char *const tn__reduction_names[] = {"sum", "mean", "max",     "min",  "sum_squares",
                                           "any", "all",  "product", "none", NULL};

bool tn__loss_reduction(const tn_op_call *c, tn_reduction how) {
    return how == TN_MEAN || how == TN_SUM || how == TN_NONE ||
           tn_op_fail(c, TN_EVALUE, "reduction is %d (TN_MEAN, TN_SUM or TN_NONE)", (int)how);
}

bool tn__loss_out(tn_op_call *c, tn_reduction how, tn_dims each) {
    return tn__loss_reduction(c, how) &&
           tn_op_out(c, how == TN_NONE ? each : TN_DIMS(), tn_dtype_of(c->in[0]));
}

/* Input i is absent, or broadcasts to input 0. */
static bool weight_fits(const tn_op_call *c, int i) {
    tn_dims x = tn_shape(c->in[0]), common;
    return !c->in[i] ||
           (tn_dims_broadcast(x, tn_shape(c->in[i]), &common) && tn_dims_equal(x, common)) ||
           tn_op_fail(c, TN_ESHAPE, "%s is %s but %s is %s (it must broadcast to that)",
                      tn_op_input_name(c->op, 0).text, tn_shape_text(c->in[0]),
                      tn_op_input_name(c->op, i).text, tn_shape_text(c->in[i]));
}

bool tn__loss_shape(tn_op_call *c) {
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0)) { return false; }
    if (!tn_dims_equal(tn_shape(c->in[0]), tn_shape(c->in[1]))) {
        return tn_op_fail(c, TN_ESHAPE, "%s is %s but %s is %s (they must be equal)",
                          tn_op_input_name(c->op, 0).text, tn_shape_text(c->in[0]),
                          tn_op_input_name(c->op, 1).text, tn_shape_text(c->in[1]));
    }
    for (int i = 2; i < c->inputs; i++) {
        if (!weight_fits(c, i)) { return false; }
    }
    return tn__loss_out(c, *(const tn_reduction *)c->args, tn_shape(c->in[0]));
}

bool tn__loss_labels(tn_op_call *c, tn_reduction how, tn_dtype dtype) {
    tn_dims each = how == TN_NONE ? tn_shape(c->in[1]) : TN_DIMS();
    return tn_op_shapes(c, "... classes, index: ..., float: classes") &&
           tn__loss_reduction(c, how) && tn_op_out(c, each, dtype);
}

tn_tensor *tn__loss_weights(tn_tensor *weight, tn_tensor *label, const tn_tensor *x) {
    tn_tensor *rows = tn_index_select(weight, 0, tn_reshape(label, TN_DIMS(-1)));
    return tn_cast(tn_reshape(rows, tn_shape(label)), tn_dtype_of(x));
}

tn_tensor *tn__loss_reduced(tn_tensor *each, tn_reduction how) {
    return how == TN_NONE ? each : how == TN_SUM ? tn_sum_all(each) : tn_mean_all(each);
}
