/* What the kernels of softmax and log_softmax read (ops/nn/): x and y of the same shape, args
 * tn_softmax_args. A row of -inf becomes NaN. y may be x's memory, dx dy's. */
#ifndef TERN_BACKENDS_SOFTMAX_H
#define TERN_BACKENDS_SOFTMAX_H

#include "backends/desc.h"

typedef struct tn_softmax_args {
    int dim; /* negative: from the end */
} tn_softmax_args;

/* x with its dimension `dim` swapped with the last: rows. A 0-dimensional x, a row of one, stays as
 * it is. */
TN__INLINE tn_desc tn__softmax_rows(const tn_desc *x, const void *args) {
    int dim = ((const tn_softmax_args *)args)->dim;
    return x->ndim == 0 ? *x : tn__desc_swapped(x, dim < 0 ? dim + x->ndim : dim, x->ndim - 1);
}

#endif
