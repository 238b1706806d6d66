/* What the three convolutions share: their arguments, and the descriptors that kernels see.
 *
 * conv, conv_transpose and conv_weight_grad are one sum over triples (position, offset, channel)
 * seen from three sides: each is linear in its two inputs, and the gradients of each are the other
 * two. So all derivatives of all orders are these three operations again.
 */
#ifndef TERN_OPS_CONV_H
#define TERN_OPS_CONV_H

#include "ops/dims.h"

enum { CONV_SPATIAL = 3 }; /* the maximum number of spatial dimensions */

/* `kernel` always has three dimensions: missing ones come first, and have size 1. `size` is the
 * result's sizes (conv_weight_grad: the kernel's) in the dimensions that exist; without dimensions,
 * conv computes its own. */
typedef struct tn__conv_call {
    tn_conv_args kernel;
    int spatial; /* 1, 2 or 3 */
    tn_dims size;
} tn__conv_call;

/* The entries for the existing dimensions, of the three in a kernel's arguments. */
static inline const int64_t *tn__conv_last(const int64_t *all, int spatial) {
    return all + (CONV_SPATIAL - spatial);
}

/* Checks the options of the function `name` ("conv2d" has `spatial` 2) and stores their numbers.
 * False after raising. */
bool tn__conv_begin(const char *name, int spatial, const tn_conv_options *options,
                    tn__conv_call *call);

/* (N, C, sizes…) as (N, C, D, H, W); NULL stays NULL. */
const tn_desc *tn__conv_volume(const tn_desc *x, tn_desc *out);

/* The dimensions after the first two. */
tn_dims tn__conv_sizes(tn_dims dims);
/* (first, second, sizes…) */
tn_dims tn__conv_dims(int64_t first, int64_t second, tn_dims sizes);

/* False after raising: inputs 0 and 1 share a float dtype and have `spatial` dimensions after two,
 * which the layouts name; bias has one element for each of `channels`. */
bool tn__conv_inputs(const tn_op_call *c, const char *layout0, const char *layout1);
bool tn__conv_bias(const tn_op_call *c, int64_t channels);

/* An x without a batch gets one of size 1, and *single is set; the call's result drops it. */
tn_tensor *tn__conv_batched(tn_tensor *x, int spatial, bool *single);
static inline tn_tensor *tn__conv_unbatched(tn_tensor *y, bool single) {
    return single ? tn_squeeze(y, 0) : y;
}

/* For the profiler: each element of the kernel meets each of the positions (N, channels, sizes…);
 * in backward once for each of the two inputs that needs a gradient. */
void tn__conv_work(tn_op_work *w, const tn_dims *places, const tn_dims *kernel);

/* For gradient rules: gives input i the result of one of the operations, in the input's sizes. */
void tn__conv_give(tn_op_grad *g, int i, const tn_op *op, tn_tensor *a, tn_tensor *b);

/* The sums over all dimensions but the channels. */
tn_tensor *tn__conv_bias_grad(tn_tensor *dy);

/* The arguments that samples name; the others are tn__conv_plain's: two dimensions, step 1. */
#define TN__CONV_FIELDS                                                                        \
    TN_FIELD_AS("stride", tn__conv_call, kernel.stride),                                       \
        TN_FIELD_AS("padding", tn__conv_call, kernel.padding),                                 \
        TN_FIELD_AS("dilation", tn__conv_call, kernel.dilation),                               \
        TN_FIELD_AS("groups", tn__conv_call, kernel.groups), TN_FIELD(tn__conv_call, spatial), \
        TN_FIELD(tn__conv_call, size)
extern const tn__conv_call tn__conv_plain;

#endif
