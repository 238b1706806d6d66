/* What batch norm with the batch's statistics and with given ones share. */
#ifndef TERN_OPS_NN_BATCH_NORM_H
#define TERN_OPS_NN_BATCH_NORM_H

#include "backends/batch_norm.h"
#include "ops/dims.h"

/* A vector over channels, reshaped to broadcast to x: (C) -> (1, C, 1, …). */
tn_tensor *tn__over_channels(tn_tensor *vector, int ndim);

/* centred / sqrt(var + eps) weight + bias; var broadcasts to it. */
tn_tensor *tn__batch_norm_finish(const tn_op_call *c, tn_tensor *centred, tn_tensor *var);

/* The host's loops for both. */
tn_status tn__batch_norm_host(const tn_op_call *call);
tn_status tn__batch_norm_host_back(const tn_op_back *b);

/* With statistics that do not come from x. mean, var: (C), f32 (f64 for f64). */
tn_tensor *tn__batch_norm_given(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_tensor *mean,
                                tn_tensor *var, double eps);

#endif
