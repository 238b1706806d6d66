/* Gives the engine the operations that it needs: autograd/, a layer below, includes nothing from
 * here. */
#include "autograd/links.h"
#include "ops/op.h"

static bool has_nan(tn_tensor *x) {
    if (!tn_dtype_is_float(tn_dtype_of(x))) { return false; }
    TN_NO_GRAD;
    TN_SCOPE;
    return tn_item(tn_any(tn_ne(x, x))) != 0.0;
}

const struct tn__op_links tn__ops = {
    .add = tn_add,
    .add_ = tn_add_,
    .sum_to = tn_sum_to,
    .cast = tn_cast,
    .to = tn_to,
    .copy = tn_copy,
    .copy_ = tn_copy_,
    .ones_like = tn_ones_like,
    .identity = tn_identity,
    .has_nan = has_nan,
};
