/* Descriptors in another shape, without a copy: for kernels, which do not raise, and for
 * tn_desc_expand and tn_desc_swap (sys/op.h), which use them. */
#ifndef TERN_BACKENDS_DESC_H
#define TERN_BACKENDS_DESC_H

#include "core/inline.h"
#include "tern/sys/backend.h"

/* x broadcast (stride 0) to these sizes, with which it must be compatible. */
TN__INLINE tn_desc tn__desc_spread(const tn_desc *x, int ndim, const int64_t *size) {
    tn_desc d = *x;
    int missing = ndim - x->ndim;
    d.ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        bool repeated = i < missing || (x->size[i - missing] == 1 && size[i] != 1);
        d.size[i] = size[i];
        d.stride[i] = repeated ? 0 : x->stride[i - missing];
    }
    return d;
}

/* Dimensions a and b swapped. */
TN__INLINE tn_desc tn__desc_swapped(const tn_desc *x, int a, int b) {
    tn_desc d = *x;
    d.size[a] = x->size[b];
    d.size[b] = x->size[a];
    d.stride[a] = x->stride[b];
    d.stride[b] = x->stride[a];
    return d;
}

#endif
