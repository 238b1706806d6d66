/* What kernels of reductions and of lines along a dimension share: offsets in axes
 * (backends/axes.h), and elements of any dtype as double or as 64-bit integers.
 */
#ifndef TERN_BACKENDS_CUDA_AXES_CUH
#define TERN_BACKENDS_CUDA_AXES_CUH

#include "backends/axes.h"
#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"

/* The offset of position i of the axes. */
static __device__ __forceinline__ int64_t tn__axes_offset(const tn__axes &a, const int64_t *stride,
                                                          int64_t i) {
    int64_t offset = 0;
    TN_NO_UNROLL
    for (int k = a.count - 1; k > 0; k--) {
        offset += i % a.size[k] * stride[k];
        i /= a.size[k];
    }
    return a.count > 0 ? offset + i * stride[0] : 0;
}

/* The dimensions of x and y other than dim, in order: one position for each line along dim. */
static inline tn__axes tn__axes_beside(const tn_desc *x, const tn_desc *y, int dim) {
    tn__axes a = {};
    a.total = 1;
    for (int d = 0; d < x->ndim; d++) {
        if (d != dim && x->size[d] != 1) {
            tn__axes_push(&a, x->size[d], x->stride[d], y->stride[d]);
        }
    }
    return a;
}

/* Element `at` of a float dtype, or of an integer dtype or bool. */
static __device__ __forceinline__ void tn__get(double *value, const void *x, tn_dtype dtype,
                                               int64_t at) {
    *value = tn__get_float(x, dtype, at);
}
static __device__ __forceinline__ void tn__get(long long *value, const void *x, tn_dtype dtype,
                                               int64_t at) {
    *value = tn__get_integer(x, dtype, at);
}

/* The value that loses against all others. */
static __device__ __forceinline__ void tn__set_lowest(double *x) {
    *x = -INFINITY;
}
static __device__ __forceinline__ void tn__set_lowest(long long *x) {
    *x = INT64_MIN;
}

#endif
