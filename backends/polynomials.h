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
#include <stdbool.h>
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

/* exp(r) = 1 + r + r^2 P for |r| <= ln(2) / 2: this is P. */
static inline float tn__expm1_tail(float r) {
    float p = 1.381432055e-3f;
    p = p * r + 8.368850686e-3f;
    p = p * r + 4.166840017e-2f;
    p = p * r + 1.666651964e-1f;
    return p * r + 4.999999404e-1f;
}
static inline float tn__expm1_small(float r) {
    return r + r * r * tn__expm1_tail(r);
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

/* erf|x| = 1 - exp(-|x| Q(|x|)), where Q(a) = -log(erfc a) / a is smooth. Error <= 1.5 ulp: what
 * the exponent lost is added to the small terms of exp(-t) - 1. */
static inline float tn__erff(float x) {
    float a = fabsf(x);
    a = a > 3.93f ? 3.93f : a; /* erf is 1 in single precision from here on */
    float b = a * a;           /* Q(a) - 1, in pairs of terms, which wait less for each other */
    float q = (-9.385982594e-6f * a + 1.188481765e-4f) * b;
    q = (q + (-6.373307551e-4f * a + 1.675638836e-3f)) * b;
    q = (q + (-1.694845269e-4f * a - 1.914782636e-2f)) * b;
    q = (q + (1.027763039e-1f * a + 6.366195679e-1f)) * a + 0.1283791661f;
    float more = a * q, t = a + more, lost = more - (t - a);
    float shifted = -t * TN__LOG2E + TN__ROUND_MAGIC;
    float scale = tn__of_bits((tn__bits_of(shifted) << 23) + 0x3F800000u);
    float r = tn__exp_remainder(-t, shifted);
    float p = r + (r * r * tn__expm1_tail(r) - lost);
    return copysignf(-(scale * p + (scale - 1.0f)), x);
}

/* ln x + more, where more is within the rounding of x: added before the last rounding. x = 2^e m
 * with sqrt(1/2) <= m < sqrt(2); denormals are scaled up first. */
static inline float tn__log_more(float x, float more) {
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
    float tail = f * f * (f * p - 0.5f) + e * TN__LN2_LOW + more;
    float y = e * TN__LN2_HIGH + (f + tail);
    y = x > 3.402823466e38f ? x : y;
    y = x == 0.0f ? -INFINITY : y;
    return x >= 0.0f ? y : NAN;
}

/* Error <= 1 ulp. */
static inline float tn__logf(float x) {
    return tn__log_more(x, -0.0f); /* which compilers leave out */
}

/* e^x - 1, accurate near 0. Error <= 1.5 ulp. From x = 20 on, the 1 is lost in e^x's rounding. */
static inline float tn__expm1f(float x) {
    float z = x > 20.0f ? 20.0f : x;
    z = z < -60.0f ? -60.0f : z;
    float y = tn__expm1_negative(z);
    return x > 20.0f ? tn__expf(x) : y;
}

/* ln(1 + x), accurate near 0: what 1 + x lost is added back. Error <= 1 ulp. */
static inline float tn__log1pf(float x) {
    float u = 1.0f + x, lost = (x - (u - 1.0f)) / u;
    return tn__log_more(u, ((u > 0.0f) & (u < 3.402823466e38f)) ? lost : 0.0f);
}

/* ---- Sine, cosine, tangent: in double, so that only the result is rounded -------------------- */

/* The largest |x| whose turns the functions below count exactly. Beyond it they are wrong: the
 * caller takes libm's. */
#define TN__TURNS_LIMIT 1048576.0f

#define TN__TURNS_MAGIC 6755399441055744.0 /* 1.5 * 2^52: as TN__ROUND_MAGIC */

static inline uint64_t tn__bits_of_double(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* x - q turn, where turn is pi or pi / 2. x may be 2^30 times that; the product of q with the 33
 * bits in the first constant is exact. */
static inline double tn__turns_remainder(float x, double q, double turn_in_pi) {
    return (double)x - q * (turn_in_pi * 0x1.921fb544p1) - q * (turn_in_pi * 0x1.0b4611a626331p-33);
}

/* sin r for |r| <= pi / 2, its sign changed if `turns` is odd (its last bit). */
static inline float tn__sin_turned(double r, double turns) {
    double z = r * r;
    double p = 2.6058385e-6;
    p = p * z - 1.980962697e-4;
    p = p * z + 8.333066478e-3;
    p = p * z - 0.16666659547875728;
    double y = r * (1.0 + z * p);
    uint64_t bits = tn__bits_of_double(y) ^ tn__bits_of_double(turns) << 63;
    memcpy(&y, &bits, sizeof y);
    return (float)y;
}

/* Error <= 0.7 ulp for |x| <= TN__TURNS_LIMIT. */
static inline float tn__sinf(float x) {
    double shifted = (double)x * 0.31830988618379067 + TN__TURNS_MAGIC;
    double q = shifted - TN__TURNS_MAGIC;
    return tn__sin_turned(tn__turns_remainder(x, q, 1.0), shifted);
}

/* The sine of x + pi / 2, which is q + 1/2 turns and r. */
static inline float tn__cosf(float x) {
    double shifted = ((double)x * 0.31830988618379067 + 0.5) + TN__TURNS_MAGIC;
    double q = (shifted - TN__TURNS_MAGIC) - 0.5;
    return tn__sin_turned(tn__turns_remainder(x, q, 1.0), shifted);
}

/* With |r| <= pi / 4: tan r = r N / D, and -D / (r N) where a quarter turn is left. Error <= 0.9
 * ulp for |x| <= TN__TURNS_LIMIT. */
static inline float tn__tanf(float x) {
    double shifted = (double)x * 0.63661977236758134 + TN__TURNS_MAGIC;
    double r = tn__turns_remainder(x, shifted - TN__TURNS_MAGIC, 0.5), z = r * r;
    double n = r * (1.0 - 0.095780229002845649 * z);
    double d = 1.0 + z * (0.0097091112530340029 * z - 0.429114057616306);
    bool odd = (tn__bits_of_double(shifted) & 1) != 0;
    return (float)((odd ? -d : n) / (odd ? n : d));
}

/* ---- libm's ---------------------------------------------------------------------------------- */

#define tn__floorf floorf
#define tn__ceilf ceilf
#define tn__rintf rintf
#define tn__asinf asinf
#define tn__acosf acosf
#define tn__atanf atanf
#define tn__atan2f atan2f
#define tn__sinhf sinhf
#define tn__coshf coshf
#define tn__sqrtf sqrtf
#define tn__fabsf fabsf
#define tn__powf powf
#define tn__fmodf fmodf

#endif
