/* What linear and linear_gelu share: the shapes of x w^T + b, and its gradients. */
#ifndef TERN_OPS_LINALG_LINEAR_H
#define TERN_OPS_LINALG_LINEAR_H

#include "ops/rows.h"

/* x (…, in), w (out, in), b (out) or absent: makes y (…, out). False after raising. */
bool tn__linear_shape(tn_op_call *c);

/* The wanted gradients of inputs 0, 1 and 2 from dy, the gradient of x w^T + b. */
void tn__linear_gradients(tn_op_grad *g, tn_tensor *dy);

/* Six shapes with and without a bias, empty ones, and one beyond a kernel's block. */
void tn__linear_samples(tn_op_samples *s);

#endif
