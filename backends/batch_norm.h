/* What the kernels of batch_norm and batch_norm_given read (ops/nn/), one function for both: x, w
 * and b, and the statistics (C), f32 (f64 for f64), which are results or inputs; args
 * tn_batch_norm_args. dw and db may be f32 where the others are bf16 or f16. The mean of equal
 * elements is exact. */
#ifndef TERN_BACKENDS_BATCH_NORM_H
#define TERN_BACKENDS_BATCH_NORM_H

#include "core/inline.h"
#include "tern/sys/backend.h"

typedef struct tn_batch_norm_args {
    double eps; /* added to the variance */
} tn_batch_norm_args;

/* Where the statistics are. */
typedef struct tn__batch_moments {
    const tn_desc *mean, *var;
    bool given; /* as inputs, which do not depend on x */
    double eps;
} tn__batch_moments;

TN__INLINE tn__batch_moments tn__batch_moments_of(const tn_desc *const *x, const tn_desc *const *y,
                                                  const void *args) {
    bool given = !y[1];
    tn__batch_moments m = {given ? x[3] : y[1], given ? x[4] : y[2], given,
                           ((const tn_batch_norm_args *)args)->eps};
    return m;
}

/* Whether the kernels leave this gradient to the operation: they use only y's gradient, and compute
 * none for given statistics. */
TN__INLINE bool tn__batch_norm_refuses(const tn_op_back *b) {
    return !b->dy[0] || b->dy[1] || b->dy[2] || b->dx[3] || b->dx[4];
}

#endif
