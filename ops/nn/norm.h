/* What the norms share: the host's loops' elements of rows and vectors, layer_norm's and rms_norm's
 * gradient, and the gradient of a residual sum. */
#ifndef TERN_OPS_NN_NORM_H
#define TERN_OPS_NN_NORM_H

#include "backends/norm.h"
#include "backends/ref/ref.h"
#include "ops/dims.h"

static inline double tn__row_load(const tn_desc *d, int64_t i, int64_t j) {
    return load_float(d, i * d->stride[0] + j * d->stride[1]);
}
static inline void tn__row_store(const tn_desc *d, int64_t i, int64_t j, double value) {
    store_float(d, i * d->stride[0] + j * d->stride[1], value);
}
/* Element i of a vector; `otherwise` if there is no vector. */
static inline double tn__vector_load(const tn_desc *d, int64_t i, double otherwise) {
    return d ? load_float(d, i * d->stride[0]) : otherwise;
}
static inline void tn__vector_store(const tn_desc *d, int64_t i, double value) {
    if (d) { store_float(d, i * d->stride[0], value); }
}

/* With h = (x - mean) rstd and g = dy w, for inputs x, w, b:
 *
 *     dw = sum over rows of dy h          db = sum over rows of dy
 *     dx = rstd (g - mean(g) - h mean(g h))
 *
 * mean NULL is RMS norm: h = x rstd, and no mean(g). */
void tn__norm_back(const tn_op_back *b, const tn_desc *mean, const tn_desc *rstd);

/* Of an operation whose inputs 0 and 1 are summed: the sum's gradient is both inputs', in one
 * tensor. */
void tn__give_sum(tn_op_grad *g, tn_tensor *ds);
tn_tensor *tn__sum_dx_out(tn_op_grad *g, int i, tn_tensor *const *made);

#endif
