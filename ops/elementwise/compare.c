/* y = a == b, a != b, a < b, …; with a NaN != is true and all others false
 *
 *     a, b: shapes that broadcast, same dtype, any       y: the common shape, bool; no gradient
 *
 * Samples: random pairs, and each of smaller, equal, larger, and the two zeros.
 */
#include "ops/elementwise/rows.h"

#define TN_COMPARE(op_, kernel_)                                                           \
    static tn_status op_##_forward(const tn_op_call *c) {                                  \
        return tn__compare(c, kernel_);                                                    \
    }                                                                                      \
    const tn_op tn__op_##op_ = {.name = #op_,                                              \
                                .inputs = {"a", "b"},                                      \
                                .shape = tn__shape_compare,                                \
                                .forward = op_##_forward,                                  \
                                .samples = "** **; [4]=(1, 2, -3, 0) [4]=(1, 3, -4, -0)"}; \
    tn_tensor *tn_##op_(tn_tensor *a, tn_tensor *b) {                                      \
        return tn_apply2(&tn__op_##op_, NULL, a, b);                                       \
    }                                                                                      \
    tn_tensor *tn_##op_##_scalar(tn_tensor *x, double k) {                                 \
        return tn_##op_(x, tn__scalar_like(x, k, #op_ "_scalar"));                         \
    }

TN_COMPARE(eq, TN_EQ)
TN_COMPARE(ne, TN_NE)
TN_COMPARE(lt, TN_LT)
TN_COMPARE(le, TN_LE)
TN_COMPARE(gt, TN_GT)
TN_COMPARE(ge, TN_GE)
