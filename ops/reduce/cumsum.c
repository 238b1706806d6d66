/* y[i] = x[0] + … + x[i] along dim; in reverse x[i] + … + x[n - 1]
 *
 *     x: any shape and dtype       y: like x; integers and bools sum to i64
 *     dx = the sums of dy in the other direction
 *
 * Summed in f64 and rounded once per element.
 */
#include "ops/reduce/cumulative.h"

static tn_status cumsum_host(const tn_op_call *c) {
    return tn__cumulate(c, false);
}

static void cumsum_backward(tn_op_grad *g) {
    const tn__cumulative_args *args = g->args;
    tn_op_give(g, 0, tn__cumulative_apply(&tn__op_cumsum, g->dout[0], args->dim, !args->reverse));
}

const tn_op tn__op_cumsum = {
    .name = "cumsum",
    .inputs = {"x"},
    .args_size = sizeof(tn__cumulative_args),
    .fields = {TN_FIELD(tn__cumulative_args, dim), TN_FIELD(tn__cumulative_args, reverse)},
    .shape = tn__cumulative_shape,
    .kernel = TN_FUSED(cumsum),
    .host = {.forward = cumsum_host},
    .backward = cumsum_backward,
    .flags = TN_OP_WIDE,
    .samples = "[7] dim=0, reverse=False; [3, 4] dim=1, reverse=True; "
               "[3, 4] dim=0, reverse=False; [2, 3, 4] dim=-2, reverse=False; "
               "[3, 0] dim=1, reverse=False; [0, 3] dim=1, reverse=True; "
               "[1] dim=0, reverse=False; [] dim=-1, reverse=False; [5, 67] dim=1, reverse=False",
};

tn_tensor *tn_cumsum(tn_tensor *x, int dim) {
    return tn__cumulative_apply(&tn__op_cumsum, x, dim, false);
}
