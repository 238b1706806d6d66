/* What the kernels of layer_norm, rms_norm and those with a residual sum read (ops/nn/): operands
 * as rows, (n, c), statistics of rows (n), f32 (f64 for f64), weight and bias (c); args
 * tn_norm_args. The mean of equal elements is exact. dw and db, sums over rows, may be f32 where
 * the others are bf16 or f16. */
#ifndef TERN_BACKENDS_NORM_H
#define TERN_BACKENDS_NORM_H

typedef struct tn_norm_args {
    double eps; /* added to the variance, or to the mean square */
} tn_norm_args;

#endif
