/* Single-precision exp, log, tanh, erf, sin, cos and tan as straight-line polynomials that
 * compilers vectorise under strict flags.
 *
 * Why: a call into libm keeps a loop scalar, and exp alone decides whether softmax and gelu run at
 * memory speed. None of these branches, reads a table or sets errno; selects replace conditions.
 * Each states its largest error against the exact value (tests/backends/test_ref_polynomials.c
 * sweeps the whole range). Coefficients are our own weighted minimax fits.
 *
 * Special values are libm's: NaN stays NaN, exp(-inf) = 0, exp above 88.72 is inf, results down to
 * the smallest denormal, tanh and erf of ±inf are ±1, the sign of zero stays, log(0) = -inf, log of
 * a negative number is NaN.
 *
 * Plain C on purpose, for other compilers as well. Functions without a polynomial fall through to
 * libm, so that TN_FAST_F(name) works for every function that backends/formulas.h names.
 */
#ifndef TERN_BACKENDS_POLYNOMIALS_H
#define TERN_BACKENDS_POLYNOMIALS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TN__ROUND_MAGIC \
    12582912.0f /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
#define TN__LOG2E 1.44269504f
#define TN__LN2_HIGH 0.693359375f /* 9 bits: its product with an exponent is exact */
#define TN__LN2_LOW -2.12194440e-4f

static inline uint32_t tn__bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float tn__of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x = n ln 2 + r with |r| <= ln(2) / 2; `shifted` is n + TN__ROUND_MAGIC. */
static inline float tn__exp_remainder(float x, float shifted) {
    float n = shifted - TN__ROUND_MAGIC;
    float r = x - n * TN__LN2_HIGH;
    return r - n * TN__LN2_LOW;
}

/* exp(r) - 1 for |r| <= ln(2) / 2. */
static inline float tn__expm1_small(float r) {
    float p = 1.381432055e-3f;
    p = p * r + 8.368850686e-3f;
    p = p * r + 4.166840017e-2f;
    p = p * r + 1.666651964e-1f;
    p = p * r + 4.999999404e-1f;
    return r + r * r * p;
}

/* 2^n, -126 <= n <= 127. */
static inline float tn__power_of_two(int32_t n) {
    return tn__of_bits((uint32_t)(n + 127) << 23);
}

/* e^x. Error <= 1 ulp, denormal results included. 2^n is applied in two factors, since 2^n itself
 * can be outside a float's range. */
static inline float tn__expf(float x) {
    x = x > 89.0f ? 89.0f : x; /* written so that NaN stays */
    x = x < -104.0f ? -104.0f : x;
    float shifted = x * TN__LOG2E + TN__ROUND_MAGIC;
    int32_t n = (int32_t)(tn__bits_of(shifted) - 0x4B400000u);
    float p = 1.0f + tn__expm1_small(tn__exp_remainder(x, shifted));
    int32_t h = n >> 1;
    return p * tn__power_of_two(h) * tn__power_of_two(n - h);
}

/* e^x - 1 for -60 <= x <= 20, with a small relative error near 0 too; tanh and erf use it. */
static inline float tn__expm1_negative(float x) {
    float shifted = x * TN__LOG2E + TN__ROUND_MAGIC;
    float scale = tn__of_bits((tn__bits_of(shifted) << 23) + 0x3F800000u);
    return scale * tn__expm1_small(tn__exp_remainder(x, shifted)) + (scale - 1.0f);
}

/* With e = exp(-2|x|) - 1: tanh|x| = -e / (2 + e). Error <= 2.5 ulp. */
static inline float tn__tanhf(float x) {
    float a = fabsf(x);
    a = a > 9.02f ? 9.02f : a; /* tanh is 1 in single precision from here on */
    float e = tn__expm1_negative(-2.0f * a);
    return copysignf(-e / (2.0f + e), x);
}

/* erf|x| = 1 - exp(-|x| Q(|x|)), where Q(a) = -log(erfc a) / a is smooth. Error <= 2 ulp. */
static inline float tn__erff(float x) {
    float a = fabsf(x);
    a = a > 3.93f ? 3.93f : a; /* erf is 1 in single precision from here on */
    float q = -9.256296835e-6f;
    q = q * a + 1.176415608e-4f;
    q = q * a - 6.328379386e-4f;
    q = q * a + 1.667029574e-3f;
    q = q * a - 1.603982819e-4f;
    q = q * a - 1.915306225e-2f;
    q = q * a + 1.027778313e-1f;
    q = q * a + 6.366193891e-1f;
    q = q * a + 0.128379167f; /* Q(a) - 1: the product below is rounded once where a is small */
    return copysignf(-tn__expm1_negative(-(a * q + a)), x);
}

/* ln x. Error <= 1 ulp. x = 2^e m with sqrt(1/2) <= m < sqrt(2); denormals are scaled up first. */
static inline float tn__logf(float x) {
    int tiny = x < 1.17549435e-38f;
    float scaled = tiny ? x * 8388608.0f : x;
    uint32_t shifted = tn__bits_of(scaled) - 0x3F3504F3u; /* sqrt(1/2) */
    float e = (float)((int32_t)shifted >> 23) - (tiny ? 23.0f : 0.0f);
    float f = tn__of_bits((shifted & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    float p = -7.634496689e-2f;
    p = p * f + 1.276157647e-1f;
    p = p * f - 1.316018254e-1f;
    p = p * f + 1.420175731e-1f;
    p = p * f - 1.662335694e-1f;
    p = p * f + 2.000122666e-1f;
    p = p * f - 2.500081956e-1f;
    p = p * f + 3.333333135e-1f;
    float tail = f * f * (f * p - 0.5f) + e * TN__LN2_LOW;
    float y = e * TN__LN2_HIGH + (f + tail);
    y = x > 3.402823466e38f ? x : y;
    y = x == 0.0f ? -INFINITY : y;
    return x >= 0.0f ? y : NAN;
}

/* e^x - 1, accurate near 0. Error <= 2 ulp. From x = 20 on, the 1 is lost in e^x's rounding. */
static inline float tn__expm1f(float x) {
    float z = x > 20.0f ? 20.0f : x;
    z = z < -60.0f ? -60.0f : z;
    float y = tn__expm1_negative(z);
    return x > 20.0f ? tn__expf(x) : y;
}

/* ln(1 + x), accurate near 0: what 1 + x lost is added back. Error <= 2 ulp. */
static inline float tn__log1pf(float x) {
    float u = 1.0f + x, y = tn__logf(u);
    float lost = (x - (u - 1.0f)) / u;
    return ((u > 0.0f) & (u < 3.402823466e38f)) ? y + lost : y;
}

/* ---- Sine, cosine, tangent ------------------------------------------------------------------- */

/* sin and cos of r for |r| <= pi / 4. */
static inline float tn__sin_small(float r) {
    float z = r * r;
    float p = -1.951521805e-4f;
    p = p * z + 8.332160291e-3f;
    p = p * z - 1.666665460e-1f;
    return copysignf(r + r * z * p, r); /* for -0 */
}
static inline float tn__cos_small(float r) {
    float z = r * r;
    float p = 2.443308269e-5f;
    p = p * z - 1.388731562e-3f;
    p = p * z + 4.166664567e-2f;
    return 1.0f - 0.5f * z + z * z * p;
}

/* sin(r + q pi / 2). */
static inline float tn__sin_turned(float r, uint32_t q) {
    float y = (q & 1) != 0 ? tn__cos_small(r) : tn__sin_small(r);
    return tn__of_bits(tn__bits_of(y) ^ (q & 2) << 30);
}

/* The largest |x| whose quarter turns the functions below count exactly. Beyond it they are wrong:
 * the caller takes libm's. */
#define TN__TURNS_LIMIT 1048576.0f

/* x = q pi / 2 + r with |r| <= pi / 4; `shifted` is q + 1.5 * 2^52. In double, since x may be 2^30
 * times its distance from a multiple of pi / 2. */
static inline double tn__quarter_turns(float x) {
    return (double)x * 0.63661977236758134 + 6755399441055744.0;
}
static inline float tn__turns_remainder(float x, double shifted) {
    double q = shifted - 6755399441055744.0; /* its product with 33 bits of pi / 2 is exact */
    return (float)((double)x - q * 0x1.921fb544p0 - q * 0x1.0b4611a626331p-34);
}
static inline uint32_t tn__low_bits(double shifted) {
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (uint32_t)bits;
}

/* Error <= 2 ulp for |x| <= TN__TURNS_LIMIT. */
static inline float tn__sinf(float x) {
    double shifted = tn__quarter_turns(x);
    return tn__sin_turned(tn__turns_remainder(x, shifted), tn__low_bits(shifted));
}
static inline float tn__cosf(float x) {
    double shifted = tn__quarter_turns(x);
    return tn__sin_turned(tn__turns_remainder(x, shifted), tn__low_bits(shifted) + 1);
}

/* Error <= 4 ulp for |x| <= TN__TURNS_LIMIT. */
static inline float tn__tanf(float x) {
    double shifted = tn__quarter_turns(x);
    float r = tn__turns_remainder(x, shifted);
    float s = tn__sin_small(r), c = tn__cos_small(r);
    return (tn__low_bits(shifted) & 1) != 0 ? -c / s : s / c;
}

/* ---- libm's ---------------------------------------------------------------------------------- */

static inline float tn__floorf(float x) {
    return floorf(x);
}
static inline float tn__ceilf(float x) {
    return ceilf(x);
}
static inline float tn__rintf(float x) {
    return rintf(x);
}
static inline float tn__asinf(float x) {
    return asinf(x);
}
static inline float tn__acosf(float x) {
    return acosf(x);
}
static inline float tn__atanf(float x) {
    return atanf(x);
}
static inline float tn__atan2f(float y, float x) {
    return atan2f(y, x);
}
static inline float tn__sinhf(float x) {
    return sinhf(x);
}
static inline float tn__coshf(float x) {
    return coshf(x);
}
static inline float tn__sqrtf(float x) {
    return sqrtf(x);
}
static inline float tn__fabsf(float x) {
    return fabsf(x);
}
static inline float tn__powf(float x, float y) {
    return powf(x, y);
}
static inline float tn__fmodf(float x, float y) {
    return fmodf(x, y);
}

#endif
