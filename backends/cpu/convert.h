/* Copies one row between memory of any float dtype and stride and a contiguous buffer of f32 or
 * f64. */
#ifndef TERN_BACKENDS_CPU_CONVERT_H
#define TERN_BACKENDS_CPU_CONVERT_H

#include "backends/cpu/cpu.h"

INLINE float float_of_bits(uint32_t bits) {
    union {
        uint32_t u;
        float f;
    } both = {.u = bits};
    return both.f;
}
INLINE uint32_t bits_of_float(float x) {
    union {
        float f;
        uint32_t u;
    } both = {.f = x};
    return both.u;
}

INLINE float from_bf16(uint16_t h) {
    return float_of_bits((uint32_t)h << 16);
}
/* Rounds to nearest even; NaN stays NaN. */
INLINE uint16_t to_bf16(float x) {
    uint32_t u = bits_of_float(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
/* The exponent is moved by a multiplication, which also takes care of subnormals. */
INLINE float from_f16(uint16_t h) {
    uint32_t body = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t scaled = bits_of_float(float_of_bits(body) * 0x1p112f);
    uint32_t special = body | 0x7f800000u;
    return float_of_bits(sign | (body >= (0x7c00u << 13) ? special : scaled));
}
INLINE uint16_t to_f16(float x) {
    uint32_t u = bits_of_float(x), sign = (u >> 16) & 0x8000u, body = u & 0x7fffffffu;
    uint32_t normal = (body - (112u << 23) + 0xfffu + ((body >> 13) & 1u)) >> 13;
    /* Adding 0.5 leaves the subnormal's bits, rounded to even, at the bottom of the significand. */
    uint32_t small = bits_of_float(float_of_bits(body) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | ((body >> 13) & 0x3ffu);
    uint32_t result = body < (113u << 23) ? small : normal;
    result = body >= 0x477ff000u ? 0x7c00u : result;
    result = body > 0x7f800000u ? nan : result;
    return (uint16_t)(sign | result);
}

/* dst[i] = x[i stride] as f32; dtype f32, f64, bf16, f16 or i8. */
static inline void load_f32(float *dst, const void *src, tn_dtype dtype, int64_t stride,
                            int64_t n) {
#define LOAD(type, value)                                         \
    do {                                                          \
        const type *x = (const type *)src;                        \
        if (stride == 1) {                                        \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { \
                type e = x[i];                                    \
                dst[i] = (value);                                 \
            }                                                     \
        } else if (stride == 0) {                                 \
            type e = n > 0 ? x[0] : 0;                            \
            float one = (value);                                  \
            for (int64_t i = 0; i < n; i++) {                     \
                dst[i] = one;                                     \
            }                                                     \
        } else {                                                  \
            for (int64_t i = 0; i < n; i++) {                     \
                type e = x[i * stride];                           \
                dst[i] = (value);                                 \
            }                                                     \
        }                                                         \
    } while (0)
    switch (dtype) {
    case TN_F32:
        LOAD(float, e);
        break;
    case TN_BF16:
        LOAD(uint16_t, from_bf16(e));
        break;
    case TN_F16:
        LOAD(uint16_t, from_f16(e));
        break;
    case TN_I8:
        LOAD(int8_t, (float)e);
        break;
    default:
        LOAD(double, (float)e);
        break;
    }
#undef LOAD
}

/* y[i stride] = src[i] in y's dtype. */
static inline void store_f32(void *dst, tn_dtype dtype, int64_t stride, const float *src,
                             int64_t n) {
#define STORE(type, value)                                        \
    do {                                                          \
        type *y = (type *)dst;                                    \
        if (stride == 1) {                                        \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { \
                float e = src[i];                                 \
                y[i] = (value);                                   \
            }                                                     \
        } else {                                                  \
            for (int64_t i = 0; i < n; i++) {                     \
                float e = src[i];                                 \
                y[i * stride] = (value);                          \
            }                                                     \
        }                                                         \
    } while (0)
    switch (dtype) {
    case TN_F32:
        STORE(float, e);
        break;
    case TN_BF16:
        STORE(uint16_t, to_bf16(e));
        break;
    case TN_F16:
        STORE(uint16_t, to_f16(e));
        break;
    default:
        STORE(double, (double)e);
        break;
    }
#undef STORE
}

/* The same for f64. */
static inline void load_f64(double *dst, const void *src, tn_dtype dtype, int64_t stride,
                            int64_t n) {
    const double *x = src;
    for (int64_t i = 0; i < n; i++) {
        dst[i] = x[i * stride];
    }
}
static inline void store_f64(void *dst, tn_dtype dtype, int64_t stride, const double *src,
                             int64_t n) {
    double *y = dst;
    for (int64_t i = 0; i < n; i++) {
        y[i * stride] = src[i];
    }
}

/* The row itself if it is contiguous f32, else `buffer` filled with it. */
static inline const float *row_f32(float *buffer, const void *src, tn_dtype dtype, int64_t stride,
                                   int64_t n) {
    if (dtype == TN_F32 && (stride == 1 || n <= 1)) { return src; }
    load_f32(buffer, src, dtype, stride, n);
    return buffer;
}

#endif
