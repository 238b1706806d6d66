/* What linear and linear_gelu share: samples of x w^T + b, and its gradients. */
#ifndef TERN_OPS_LINALG_LINEAR_H
#define TERN_OPS_LINALG_LINEAR_H

#include "ops/dims.h"

/* The inputs weight and bias: their gradients are widened and accumulated. */
#define TN__LINEAR_WEIGHTS (1u << 1 | 1u << 2)

/* By kernels: the requested gradients of inputs 0, 1 and 2 from dy (n, out), the gradient of x w^T
 * + b. */
TN_API tn_status tn__linear_back(const tn_op_back *b, const tn_desc *dy);

void tn__linear_work(tn_op_work *w);

/* With and without a bias, including empty ones and one larger than a kernel's block. */
extern const char tn__linear_samples[];

/* linear_cat.c: x (…, in) times n weights (outi, in), 1 to 3 of them, one behind another (…, out1 +
 * out2 + …). scales[i]: of a weight of signed bytes, else NULL. `add`, like the result: its
 * summand; or NULL. */
tn_tensor *tn__linear_cat(tn_tensor *x, int n, tn_tensor *const *weights, tn_tensor *const *scales,
                          tn_tensor *add);

#endif
