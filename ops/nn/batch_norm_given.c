/* batch_norm_given(x, mean, var, w, b) = (x - mean) rstd w + b, with rstd = 1 / sqrt(var + eps)
 *
 *     x: (N, C, …), w and b: (C), each may be absent; f32 f64 bf16 f16       y: like x
 *     mean, var: (C), x's dtype, or f32 for bf16 and f16
 *     dx = dy w rstd        dw = sum dy (x - mean) rstd        db = sum dy
 *
 * Batch norm as used in evaluation. mean and var have gradients too (through the composition), so
 * statistics shared by ranks or parts of a batch can be computed by operations and passed in.
 */
#include "ops/nn/batch_norm.h"

enum { X, W, B, MEAN, VAR, INPUTS };

static bool batch_norm_given_shape(tn_op_call *c) {
    tn_dtype dtype = tn_dtype_of(c->in[X]), wide = tn__wide_dtype(dtype);
    for (int i = MEAN; i <= VAR; i++) {
        tn_dtype own = tn_dtype_of(c->in[i]);
        if (own != dtype && own != wide) {
            return tn_op_fail(c, TN_EDTYPE, "x is %s but %s is %s (it must be %s)",
                              tn_dtype_name(dtype), tn_op_input_name(c->op, i).text,
                              tn_dtype_name(own), tn_dtype_name(wide));
        }
    }
    return tn__eps_fits(c, ((const tn_batch_norm_args *)c->args)->eps) &&
           tn_op_shapes(c, "batch channels ..., channels, channels, float: channels, "
                           "float: channels -> batch channels ...");
}

static tn_tensor *batch_norm_given_compose(tn_op_call *c) {
    int ndim = tn_ndim(c->in[X]);
    tn_tensor *centred = tn_sub(c->in[X], tn__over_channels(c->in[MEAN], ndim));
    return tn__batch_norm_finish(c, centred, tn__over_channels(c->in[VAR], ndim));
}

const tn_op tn__op_batch_norm_given = {
    .name = "batch_norm_given",
    .inputs = {"x", "weight", "bias", "mean", "var"},
    .args_size = sizeof(tn_batch_norm_args),
    .fields = {TN_FIELD(tn_batch_norm_args, eps)},
    .optional = 1u << W | 1u << B,
    .saves = TN_SAVES_INPUTS,
    .shape = batch_norm_given_shape,
    .kernel = TN_FUSED(batch_norm_given),
    .host = {tn__batch_norm_host, tn__batch_norm_host_back},
    .compose = batch_norm_given_compose,
    .flags = TN_OP_WIDE,
    .widens = 1u << W | 1u << B,
    /* With both, without bias, without either; no rows, one position, rows longer than the fast
     * kernel's chunk. */
    .samples = "{-2:2, 0.5:1.5, -1:1, -0.5:0.5, 0.5:1.5} [4, 3] [3] [3] [3] [3] eps=1e-05; "
               "[2, 3, 3, 2] [3] [3] [3] [3] eps=1e-05; [2, 3, 3, 2] [3] - [3] [3] eps=1e-05; "
               "[2, 3, 3, 2] - - [3] [3] eps=1e-05; [0, 2, 3] [2] [2] [2] [2] eps=1e-05; "
               "[1, 2, 2100] [2] [2] [2] [2] eps=1e-05; [2, 2, 1, 3, 2] [2] [2] [2] [2] eps=1e-05",
};

tn_tensor *tn__batch_norm_given(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_tensor *mean,
                                tn_tensor *var, double eps) {
    tn_tensor *in[INPUTS] = {x, weight, bias, mean, var};
    return tn_apply(&tn__op_batch_norm_given, &(tn_batch_norm_args){eps}, in, INPUTS);
}
