/* y = x in new, contiguous memory
 *
 *     x: any shape and dtype       y: like x
 *     dx = dy
 */
#include "ops/op.h"

const tn_op tn__op_copy = {
    .name = "copy",
    .inputs = {"x"},
    .shapes = "any: ... -> ...",
    .forward = tn__copy_forward,
    .backward = tn__pass_backward,
    .samples = "[7]; [3, 4]; [2, 3, 4]; []; [0]; [2, 0, 3]; [1]; [1, 1]; [5, 67]",
};

tn_tensor *tn_copy(tn_tensor *x) {
    return tn_apply1(&tn__op_copy, NULL, x);
}

tn_tensor *tn_contiguous(tn_tensor *x) {
    return tn__usable(x, "contiguous") && tn_is_contiguous(x) ? x : tn_copy(x);
}
