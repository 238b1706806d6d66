/* Hands the engine the operations that it needs. autograd/ is to the left of ops/ and includes
 * nothing from here. */
#include "autograd/links.h"
#include "ops/op.h"

static bool has_nan(tn_tensor *x) {
    if (!tn_dtype_is_float(tn_dtype_of(x))) {
        return false;
    }
    TN_NO_GRAD;
    TN_SCOPE;
    return tn_item(tn_any(tn_ne(x, x))) != 0.0;
}

__attribute__((constructor)) static void set_links(void) {
    tn__ops.add = tn_add;
    tn__ops.add_ = tn_add_;
    tn__ops.sum_to = tn_sum_to;
    tn__ops.cast = tn_cast;
    tn__ops.copy = tn_copy;
    tn__ops.copy_ = tn_copy_;
    tn__ops.ones_like = tn_ones_like;
    tn__ops.identity = tn_identity;
    tn__ops.has_nan = has_nan;
}
