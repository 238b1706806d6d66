/* What views and the copies that undo them share. */
#ifndef TERN_OPS_SHAPE_H
#define TERN_OPS_SHAPE_H

#include "ops/dims.h"

/* Every step-th element of one dimension: what slice reads and place fills. */
typedef struct tn__slice_args {
    int dim;
    int64_t start, length, step;
} tn__slice_args;

/* A dimension from a list; one that does not fit an int becomes one that no tensor has. */
static inline int tn__int_dim(int64_t dim) {
    return dim >= -TN_MAX_DIMS && dim < TN_MAX_DIMS ? (int)dim : TN_MAX_DIMS;
}

/* The part of a descriptor that a slice sees; dim is not negative. */
static inline tn_desc tn__desc_slice(const tn_desc *x, int dim, int64_t start, int64_t length,
                                     int64_t step) {
    tn_desc part = *x;
    if (x->data && length > 0) {
        part.data = (char *)x->data + start * x->stride[dim] * (int64_t)tn_dtype_size(x->dtype);
    }
    part.size[dim] = length;
    part.stride[dim] = x->stride[dim] * step;
    return part;
}

/* Gives input 0 the gradient of its slice: dy, with zeros elsewhere. Several slices of one tensor
 * (q, k and v of one product) fill one buffer: each after the first adds its part to it. */
void tn__give_slice(tn_op_grad *g, tn__slice_args slice, tn_tensor *dy);

/* Whether input i has input 0's dtype; otherwise raises. */
static inline bool tn__joins(const tn_op_call *c, int i) {
    tn_dtype own = c->in[i]->dtype, first = c->in[0]->dtype;
    return own == first ||
           tn_op_fail(c, TN_EDTYPE, "tensor %d is %s but tensor 0 is %s (cast one of them)", i,
                      tn_dtype_name(own), tn_dtype_name(first));
}

/* For tril, triu and eye: (rows, columns) of bools: whether the comparison `holds` between the
 * element's column and the column where its row meets the diagonal. */
tn_tensor *tn__by_diagonal(tn_device device, int64_t rows, int64_t columns, int64_t diagonal,
                           tn_tensor *(*holds)(tn_tensor *column, tn_tensor *row));

#endif
