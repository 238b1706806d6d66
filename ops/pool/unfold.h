/* What unfold and fold share. */
#ifndef TERN_OPS_UNFOLD_H
#define TERN_OPS_UNFOLD_H

#include "ops/pool/pool.h"

/* The number of window positions, and of elements in a window. */
static inline int64_t tn__unfold_places(const tn__pool_args *a) {
    return tn_dims_count(TN_DIMS(a->out[1], a->out[2]));
}
static inline int64_t tn__unfold_kernel(const tn__pool_args *a) {
    return a->kernel[1] * a->kernel[2];
}

#endif
