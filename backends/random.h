/* How the generator's words become numbers: the specification that every backend shares.
 *
 * tn_philox(seed, stream, call, index) returns four 32-bit words. Element i of a draw,
 * i in row-major order, counted from the key's `first`, uses
 *
 *     f32 bf16 f16, dropout   word i % 4 of index i / 4: uniform24, its top 24 bits times 2^-24
 *     f64, integers           words 2 (i % 2) and 2 (i % 2) + 1 of index i / 2 as one 64-bit word,
 *                             the second one high: uniform53, its top 53 bits times 2^-53
 *     uniforms in [a, b)      min(a + (b - a) u, the dtype's largest number below b),
 *                             rounded once: never b
 *     normals                 elements 2p and 2p + 1 share a pair (Box and Muller 1958): u from the
 *                             even element's word or words, v from the odd one's;
 *                             r = sqrt(-2 ln(1 - u)): r cos(2 pi v) and r sin(2 pi v)
 *     integers in [a, b)      a + the high 64 bits of (64-bit word) (b - a):
 *                             biased by less than (b - a) 2^-64
 *     Bernoulli, dropout      u < p: drawn as an integer, word >> 8 below ceil(p 2^24),
 *                             which is equivalent
 *
 * What dropout keeps is multiplied by 1 / (1 - p), a float; for f64 a double.
 *
 * An element is a function of its index only, so any thread may compute any of them, in any layout.
 * Uniforms in [0, 1), integers, Bernoulli draws and dropout are the same bits on every backend;
 * normals, and uniforms that were scaled, agree up to rounding. A dropout mask is the same for
 * every dtype.
 */
#ifndef TERN_BACKENDS_RANDOM_H
#define TERN_BACKENDS_RANDOM_H

#include "core/inline.h"

#include <tern/tensor.h>

#include <math.h>

__extension__ typedef unsigned __int128 tn__uint128;

TN__INLINE float tn__uniform24(uint32_t word) {
    return (float)(word >> 8) * 0x1p-24f;
}

TN__INLINE uint64_t tn__word64(uint32_t first, uint32_t second) {
    return (uint64_t)second << 32 | first;
}

TN__INLINE double tn__uniform53(uint64_t word) {
    return (double)(word >> 11) * 0x1p-53;
}

/* The largest number below `high` of a float dtype. */
static inline double tn__largest_below(tn_dtype dtype, double high) {
    int digits = dtype == TN_F64 ? 53 : dtype == TN_F32 ? 24 : dtype == TN_BF16 ? 8 : 11;
    int lowest = dtype == TN_F64 ? -1021 : dtype == TN_F16 ? -13 : -125, e; /* of normal numbers */
    double head = frexp(high, &e);
    e -= head == 0.5; /* numbers below a power of two are closer together */
    double step = ldexp(1.0, (e > lowest && high != 0 ? e : lowest) - digits);
    return (ceil(high / step) - 1) * step;
}

/* No uniform in [a, b) is above this. It is a if the dtype has no number in between. */
static inline double tn__uniform_limit(tn_dtype dtype, double a, double b) {
    return fmax(a, tn__largest_below(dtype, b));
}

/* A number in [0, range) from a 64-bit word. */
TN__INLINE uint64_t tn__below(uint64_t word, uint64_t range) {
    return (uint64_t)(((tn__uint128)word * range) >> 64);
}

/* `word >> 8` below this happens with probability p. */
TN__INLINE uint32_t tn__threshold24(double p) {
    return p >= 1.0 ? 1u << 24 : p > 0.0 ? (uint32_t)ceil(p * 0x1p24) : 0;
}

/* Two independent standard normals from two uniforms in [0, 1). */
TN__INLINE void tn__box_muller_f(float u, float v, float *even, float *odd) {
    float r = sqrtf(-2.0f * logf(1.0f - u)), angle = 6.28318530717958648f * v;
    *even = r * cosf(angle);
    *odd = r * sinf(angle);
}

TN__INLINE void tn__box_muller_d(double u, double v, double *even, double *odd) {
    double r = sqrt(-2.0 * log(1.0 - u)), angle = 6.28318530717958648 * v;
    *even = r * cos(angle);
    *odd = r * sin(angle);
}

#endif
