/* bf16 and f16 to and from float, inline for kernels. Both round to nearest even;
 * NaN stays NaN (quiet). */
#ifndef TERN_TENSOR_HALF_H
#define TERN_TENSOR_HALF_H

#include "tern/tensor.h"

#include <string.h>

static inline uint32_t tn__float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float tn__bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float tn__bf16_to_float(tn_bf16 x) {
    return tn__bits_float((uint32_t)x.bits << 16);
}

static inline tn_bf16 tn__bf16_from_float(float x) {
    uint32_t bits = tn__float_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (tn_bf16){(uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

static inline float tn__f16_to_float(tn_f16 x) {
    uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest < 0x0400u) { /* subnormal: a multiple of 2^-24 */
        return tn__bits_float(tn__float_bits((float)rest * 0x1p-24f) | sign);
    }
    if (rest >= 0x7c00u) {
        return tn__bits_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13 |
                              (rest > 0x7c00u ? 0x400000u : 0u));
    }
    return tn__bits_float(sign | ((rest << 13) + 0x38000000u));
}

static inline tn_f16 tn__f16_from_float(float x) {
    uint32_t bits = tn__float_bits(x), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        return (tn_f16){(uint16_t)(sign | 0x7e00u | ((rest >> 13) & 0x3ffu))};
    }
    if (rest >= 0x477ff000u) { /* 65520 and more round to infinity */
        return (tn_f16){(uint16_t)(sign | 0x7c00u)};
    }
    /* below 2^-14: 0.5 has an ulp of 2^-24, so the addition rounds to a subnormal */
    if (rest < 0x38800000u) {
        uint32_t sum = tn__float_bits(tn__bits_float(rest) + 0.5f);
        return (tn_f16){(uint16_t)(sign | (sum - 0x3f000000u))};
    }
    uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
    return (tn_f16){(uint16_t)(sign | ((rounded - 0x38000000u) >> 13))};
}

#endif
