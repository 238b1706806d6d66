/* What reduce.cu and argmax.cu share: the dimensions that stay and those that go, and elements of any dtype as double or as
 * 64 bits.
 */
#ifndef TERN_BACKENDS_CUDA_AXES_CUH
#define TERN_BACKENDS_CUDA_AXES_CUH

#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"

/* Some dimensions, as one range. */
struct tn__axes {
    int count;
    int64_t total, size[TN_MAX_DIMS], x[TN_MAX_DIMS], y[TN_MAX_DIMS]; /* strides */
};

static __device__ __forceinline__ int64_t tn__axes_offset(const tn__axes &a, const int64_t *stride,
                                                          int64_t i) {
    int64_t offset = 0;
    TN_ROLLED
    for (int k = a.count - 1; k > 0; k--) {
        offset += i % a.size[k] * stride[k];
        i /= a.size[k];
    }
    return a.count > 0 ? offset + i * stride[0] : 0;
}

/* Behind the others; merged with the last where both operands allow. */
static inline void tn__axes_push(tn__axes *a, int64_t size, int64_t x, int64_t y) {
    int k = a->count;
    if (k > 0 && a->x[k - 1] == x * size && a->y[k - 1] == y * size) {
        a->size[k - 1] *= size;
        a->x[k - 1] = x;
        a->y[k - 1] = y;
    } else {
        a->size[k] = size;
        a->x[k] = x;
        a->y[k] = y;
        a->count++;
    }
    a->total *= size;
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

/* What loses against all others. */
static __device__ __forceinline__ void tn__set_lowest(double *x) {
    *x = -INFINITY;
}
static __device__ __forceinline__ void tn__set_lowest(long long *x) {
    *x = INT64_MIN;
}

#endif
