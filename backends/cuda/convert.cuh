/* Access to an element whose dtype is known at run time only: for cases too rare for a kernel of
 * their own. Conversions are those of ref (backends/ref/elementwise.c).
 */
#ifndef TERN_BACKENDS_CUDA_CONVERT_CUH
#define TERN_BACKENDS_CUDA_CONVERT_CUH

#include "backends/cuda/kernel.h"

static inline bool tn__is_integer(tn_dtype dtype) { /* bool is neither */
    return dtype == TN_I64 || dtype == TN_I32 || dtype == TN_U8 || dtype == TN_I8;
}

static inline bool tn__is_index(tn_dtype dtype) {
    return dtype == TN_I64 || dtype == TN_I32;
}

/* Truncates towards zero and saturates at int64's range; NaN becomes 0. For host and device. */
static __host__ __device__ __forceinline__ int64_t tn__to_integer(double x) {
    if (x >= 0x1p63) { return INT64_MAX; }
    return x >= -0x1p63 ? (int64_t)x : x < 0 ? INT64_MIN : 0;
}

/* Element `at` of an integer dtype or bool. */
static __device__ __forceinline__ int64_t tn__get_integer(const void *data, tn_dtype dtype,
                                                          int64_t at) {
    switch (dtype) {
    case TN_I64:
        return ((const int64_t *)data)[at];
    case TN_I32:
        return ((const int32_t *)data)[at];
    case TN_I8:
        return ((const int8_t *)data)[at];
    case TN_BOOL:
        return ((const uint8_t *)data)[at] != 0;
    default:
        return ((const uint8_t *)data)[at];
    }
}

static __device__ __forceinline__ void tn__put_integer(void *data, tn_dtype dtype, int64_t at,
                                                       int64_t value) {
    switch (dtype) {
    case TN_I64:
        ((int64_t *)data)[at] = value;
        break;
    case TN_I32:
        ((int32_t *)data)[at] = (int32_t)value;
        break;
    case TN_I8:
        ((int8_t *)data)[at] = (int8_t)value;
        break;
    case TN_BOOL:
        ((uint8_t *)data)[at] = value != 0;
        break;
    default:
        ((uint8_t *)data)[at] = (uint8_t)value;
        break;
    }
}

/* Element `at` of a float dtype, exactly. */
static __device__ __forceinline__ double tn__get_float(const void *data, tn_dtype dtype,
                                                       int64_t at) {
    TN_FLOATS_ONLY(dtype, return tn__load(((const T *)data)[at]));
}

/* A number as an element of any dtype: floats rounded (bf16 and f16 via f32), integers
 * truncated and cut to their width, bool: whether it is not 0. */
static __device__ __forceinline__ void tn__put(void *data, tn_dtype dtype, int64_t at,
                                               double value) {
    switch (dtype) {
    case TN_F32:
        ((float *)data)[at] = (float)value;
        break;
    case TN_F64:
        ((double *)data)[at] = value;
        break;
    case TN_BF16:
        ((tn__bf16 *)data)[at] = tn__store<tn__bf16>((float)value);
        break;
    case TN_F16:
        ((tn__half *)data)[at] = tn__store<tn__half>((float)value);
        break;
    case TN_BOOL:
        ((uint8_t *)data)[at] = value != 0;
        break;
    default:
        tn__put_integer(data, dtype, at, tn__to_integer(value));
        break;
    }
}

#endif
