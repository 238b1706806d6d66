/* What batch norm with the batch's statistics and with given ones have in common. */
#ifndef TERN_OPS_NN_BATCH_NORM_H
#define TERN_OPS_NN_BATCH_NORM_H

#include "backends/batch_norm.h"
#include "ops/dims.h"

/* x is (N, C, …) of floats, weight and bias, inputs 1 and 2, are (C) of its dtype, where they are
 * there; c->args are tn_batch_norm_args. False after raising. */
bool tn__batch_norm_fits(const tn_op_call *c);

/* A vector over channels as something that broadcasts to x: (C) -> (1, C, 1, …). */
tn_tensor *tn__over_channels(tn_tensor *vector, int ndim);

/* centred / sqrt(var + eps) weight + bias, with var as it broadcasts. */
tn_tensor *tn__batch_norm_finish(const tn_op_call *c, tn_tensor *centred, tn_tensor *var);

/* The host's loops of both. */
tn_status tn__batch_norm_host(const tn_op_call *call);
tn_status tn__batch_norm_host_back(const tn_op_back *b);

/* With statistics that do not come from x. mean, var: (C), f32 (f64 for f64). */
tn_tensor *tn__batch_norm_given(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_tensor *mean,
                                tn_tensor *var, double eps);
/* With those of x, which are *mean and *var (biased), and differentiable. */
tn_tensor *tn__batch_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps,
                          tn_tensor **mean, tn_tensor **var);

#endif
