/* Every one- and two-argument formula, one line each: the mathematics that ref,
 * cpu and any other backend instantiate.
 *
 * A list takes a macro X, the compute type T (float or double) and a macro M that selects the
 * mathematics library:
 *
 *     TN_LIBM_F   expf, tanhf, … of libm: what ref uses for float
 *     TN_LIBM_D   exp, tanh, … of libm: double, everywhere
 *     TN_FAST_F   the vectorising polynomials of backends/polynomials.h: cpu's float
 *
 * X(CODE, name, formula) is expanded for each line. In a formula x (or a and b) and the constants
 * k0 and k1 have type T:
 *
 *     #define CASE(code, name, formula) case code: return formula;
 *     static float unary(tn_unary f, float x, float k0, float k1) {
 *         switch (f) { TN_UNARY_FORMULAS(CASE, float, TN_LIBM_F) default: return x; }
 *     }
 *
 * Formulas are free of branches where it matters, so that a loop over one of them vectorises. NaN
 * in, NaN out, except where a comment says otherwise. bf16 and f16 are computed in float. Integers
 * (i64, i32, u8, i8) are computed in int64_t, wrap around, and are truncated to their width when
 * stored.
 */
#ifndef TERN_BACKENDS_FORMULAS_H
#define TERN_BACKENDS_FORMULAS_H

#include "backends/polynomials.h"
#include "core/inline.h"

#include <tern/sys/backend.h>

#define TN_LIBM_F(name) name##f
#define TN_LIBM_D(name) name
#define TN_FAST_F(name) tn__##name##f

/* Helpers for formulas that use a value more than once.
 *
 * gelu (tanh form) is x / (1 + exp(-u)) with u = 2 sqrt(2 / pi) (x + 0.044715 x^3). The slopes take
 * s = 1 / (1 + exp(-u)), or s = 1 / (1 + exp(-x)) for silu; gelu's is s + x s (1 - s) u'(x). There
 * x is clamped so that x^2 cannot overflow: s (1 - s) is 0 long before that.
 *
 * remainder is fmod, plus b if fmod has the other sign.
 *
 * mish's gate is tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2), here from v = e^-|x|. */
/* clang-format off */
#define TN__FORMULA_HELPERS(T)                                                                     \
    TN__INLINE T tn__clamp_##T(T x, T low, T high) {                                               \
        x = x < low ? low : x;                                                                     \
        return x > high ? high : x;                                                                \
    }                                                                                              \
    TN__INLINE T tn__gelu_u_##T(T x) {                                                             \
        return (T)1.5957691216057308 * x * (1 + (T)0.044715 * x * x);                              \
    }                                                                                              \
    TN__INLINE T tn__gelu_tanh_slope_##T(T x, T s) {                                               \
        T z = tn__clamp_##T(x, -30, 30);                                                           \
        return s + z * s * (1 - s) * ((T)1.5957691216057308 * (1 + (T)0.134145 * z * z));          \
    }                                                                                              \
    TN__INLINE T tn__silu_slope_##T(T x, T s) {                                                    \
        return s * (1 + x * (1 - s));                                                              \
    }                                                                                              \
    TN__INLINE T tn__mish_gate_##T(T x, T v) {                                                     \
        T n = x < 0 ? v * (v + 2) : 1 + 2 * v;                                                     \
        return n / (n + (x < 0 ? 2 : 2 * v * v));                                                  \
    }                                                                                              \
    TN__INLINE T tn__mish_slope_##T(T x, T v) {                                                    \
        T t = tn__mish_gate_##T(x, v), s = (x < 0 ? v : 1) / (1 + v);                              \
        T z = tn__clamp_##T(x, -200, 200);                                                         \
        return t + z * s * (1 - t * t);                                                            \
    }                                                                                              \
    TN__INLINE T tn__remainder_##T(T b, T rest) {                                                  \
        return ((rest != 0) & ((rest < 0) != (b < 0))) ? rest + b : rest;                          \
    }
TN__FORMULA_HELPERS(float)
TN__FORMULA_HELPERS(double)

/* Of x, k0, k1. sign(NaN) is 0, as in PyTorch. */
#define TN_UNARY_FORMULAS(X, T, M)                                                                 \
    X(TN_NEG, neg, -x)                                                                             \
    X(TN_ABS, abs, M(fabs)(x))                                                                     \
    X(TN_SIGN, sign, (T)((x > 0) - (x < 0)))                                                       \
    X(TN_EXP, exp, M(exp)(x))                                                                      \
    X(TN_LOG, log, M(log)(x))                                                                      \
    X(TN_SQRT, sqrt, M(sqrt)(x))                                                                   \
    X(TN_RSQRT, rsqrt, 1 / M(sqrt)(x))                                                             \
    X(TN_SQUARE, square, x * x)                                                                    \
    X(TN_RECIPROCAL, reciprocal, 1 / x)                                                            \
    X(TN_SIN, sin, M(sin)(x))                                                                      \
    X(TN_COS, cos, M(cos)(x))                                                                      \
    X(TN_TANH, tanh, M(tanh)(x))                                                                   \
    X(TN_SIGMOID, sigmoid, 1 / (1 + M(exp)(-x)))                                                   \
    X(TN_RELU, relu, x <= 0 ? 0 : x)                                                               \
    X(TN_GELU_TANH, gelu_tanh, x / (1 + M(exp)(-tn__gelu_u_##T(x))))                               \
    X(TN_GELU_ERF, gelu_erf, (T)0.5 * x * (1 + M(erf)(x * (T)0.70710678118654752)))                \
    X(TN_ERF, erf, M(erf)(x))                                                                      \
    X(TN_SILU, silu, x / (1 + M(exp)(-x)))                                                         \
    X(TN_ADD_K, add_k, x + k0)                                                                     \
    X(TN_MUL_K, mul_k, x * k0)                                                                     \
    X(TN_SUB_K, sub_k, x - k0)                                                                     \
    X(TN_DIV_K, div_k, x / k0)                                                                     \
    X(TN_RSUB_K, rsub_k, k0 - x)                                                                   \
    X(TN_RDIV_K, rdiv_k, k0 / x)                                                                   \
    X(TN_POW_K, pow_k, M(pow)(x, k0))                                                              \
    X(TN_CLAMP_K, clamp_k, tn__clamp_##T(x, k0, k1))                                               \
    X(TN_EXPM1, expm1, M(expm1)(x))                                                                \
    X(TN_LOG1P, log1p, M(log1p)(x))                                                                \
    X(TN_FLOOR, floor, M(floor)(x))                                                                \
    X(TN_CEIL, ceil, M(ceil)(x))                                                                   \
    X(TN_ROUND, round, M(rint)(x))                                                                 \
    X(TN_TAN, tan, M(tan)(x))                                                                      \
    X(TN_ASIN, asin, M(asin)(x))                                                                   \
    X(TN_ACOS, acos, M(acos)(x))                                                                   \
    X(TN_ATAN, atan, M(atan)(x))                                                                   \
    X(TN_SINH, sinh, M(sinh)(x))                                                                   \
    X(TN_COSH, cosh, M(cosh)(x))                                                                   \
    X(TN_MISH, mish, x *tn__mish_gate_##T(x, M(exp)(-M(fabs)(x))))                                 \
    X(TN_HARDSWISH, hardswish, x *tn__clamp_##T(x + 3, 0, 6) / 6)                                  \
    X(TN_LEAKY_RELU_K, leaky_relu_k, x > 0 ? x : k0 * x)                                           \
    X(TN_ELU_K, elu_k, k1 * (x > 0 ? x : k0 * M(expm1)(x)))                                        \
    X(TN_SOFTPLUS_K, softplus_k,                                                                   \
      k0 * x > k1 ? x                                                                              \
                  : ((k0 * x > 0 ? k0 * x : 0) + M(log1p)(M(exp)(-M(fabs)(k0 * x)))) / k0)         \
    X(TN_LEAKY_RELU_SLOPE_K, leaky_relu_slope_k, x > 0 ? 1 : (x <= 0 ? k0 : x))                    \
    X(TN_ELU_SLOPE_K, elu_slope_k, k1 * (x > 0 ? 1 : k0 * M(exp)(x)))                              \
    X(TN_SOFTPLUS_SLOPE_K, softplus_slope_k, k0 * x > k1 ? 1 : 1 / (1 + M(exp)(-k0 * x)))          \
    X(TN_HARDTANH_SLOPE_K, hardtanh_slope_k, ((x > k0) & (x < k1)) ? 1 : (x == x ? 0 : x))

/* Formulas of a and b; in the gradients a is x or y (sys/backend.h says which) and b is dy. */
#define TN_BINARY_FORMULAS(X, T, M)                                                                \
    X(TN_ADD, add, a + b)                                                                          \
    X(TN_SUB, sub, a - b)                                                                          \
    X(TN_MUL, mul, a * b)                                                                          \
    X(TN_DIV, div, a / b)                                                                          \
    X(TN_POW, pow, M(pow)(a, b))                                                                   \
    X(TN_MAXIMUM, maximum, ((a > b) | (a != a)) ? a : b)                                           \
    X(TN_MINIMUM, minimum, ((a < b) | (a != a)) ? a : b)                                           \
    X(TN_TANH_GRAD, tanh_grad, b * (1 - a * a))                                                    \
    X(TN_SIGMOID_GRAD, sigmoid_grad, b * (a * (1 - a)))                                            \
    X(TN_RELU_GRAD, relu_grad, a > 0 ? b : 0)                                                      \
    X(TN_GELU_TANH_GRAD, gelu_tanh_grad,                                                           \
      b * tn__gelu_tanh_slope_##T(a, 1 / (1 + M(exp)(-tn__gelu_u_##T(a)))))                        \
    X(TN_GELU_ERF_GRAD, gelu_erf_grad,                                                             \
      b * ((T)0.5 * (1 + M(erf)(a * (T)0.70710678118654752)) +                                     \
           a * (T)0.39894228040143268 * M(exp)((T)-0.5 * a * a)))                                  \
    X(TN_SILU_GRAD, silu_grad, b * tn__silu_slope_##T(a, 1 / (1 + M(exp)(-a))))                    \
    X(TN_ATAN2, atan2, M(atan2)(a, b))                                                             \
    X(TN_MISH_GRAD, mish_grad, b * tn__mish_slope_##T(a, M(exp)(-M(fabs)(a))))                     \
    X(TN_HARDSWISH_GRAD, hardswish_grad,                                                           \
      a >= 3 ? b : (a <= -3 ? 0 : b * (a / 3 + (T)0.5)))                                           \
    X(TN_FMOD, fmod, M(fmod)(a, b))                                                                \
    X(TN_REMAINDER, remainder, tn__remainder_##T(b, M(fmod)(a, b)))                                \
    X(TN_SILU_MUL, silu_mul, a / (1 + M(exp)(-a)) * b)

/* For any type; the operands are a and b. */
#define TN_COMPARE_FORMULAS(X)                                                                     \
    X(TN_EQ, eq, a == b)                                                                           \
    X(TN_NE, ne, a != b)                                                                           \
    X(TN_LT, lt, a < b)                                                                            \
    X(TN_LE, le, a <= b)                                                                           \
    X(TN_GT, gt, a > b)                                                                            \
    X(TN_GE, ge, a >= b)

/* ---- Integers: int64_t throughout, k0 and k1 too --------------------------------------------- */

/* Overflow wraps (in C it is undefined for signed types, hence the casts). */
#define TN__WRAP(a, op, b) ((int64_t)((uint64_t)(a)op(uint64_t)(b)))

/* Rounded towards zero; x / 0 = 0. */
TN__INLINE int64_t tn__integer_div(int64_t a, int64_t b) {
    if (b == 0) {
        return 0;
    }
    return b == -1 ? TN__WRAP(0, -, a) : a / b;
}

/* x % 0 = x. */
TN__INLINE int64_t tn__integer_fmod(int64_t a, int64_t b) {
    return b == 0 ? a : b == -1 ? 0 : a % b;
}
TN__INLINE int64_t tn__integer_remainder(int64_t a, int64_t b) {
    int64_t rest = tn__integer_fmod(a, b);
    return b != 0 && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

#define TN_UNARY_INTEGER_FORMULAS(X)                                                               \
    X(TN_NEG, neg, TN__WRAP(0, -, x))                                                              \
    X(TN_ABS, abs, x < 0 ? TN__WRAP(0, -, x) : x)                                                  \
    X(TN_SIGN, sign, (x > 0) - (x < 0))                                                            \
    X(TN_SQUARE, square, TN__WRAP(x, *, x))                                                        \
    X(TN_RELU, relu, x < 0 ? 0 : x)                                                                \
    X(TN_ADD_K, add_k, TN__WRAP(x, +, k0))                                                         \
    X(TN_MUL_K, mul_k, TN__WRAP(x, *, k0))                                                         \
    X(TN_SUB_K, sub_k, TN__WRAP(x, -, k0))                                                         \
    X(TN_RSUB_K, rsub_k, TN__WRAP(k0, -, x))                                                       \
    X(TN_CLAMP_K, clamp_k, (x < k0 ? k0 : x) > k1 ? k1 : (x < k0 ? k0 : x))

#define TN_BINARY_INTEGER_FORMULAS(X)                                                              \
    X(TN_ADD, add, TN__WRAP(a, +, b))                                                              \
    X(TN_SUB, sub, TN__WRAP(a, -, b))                                                              \
    X(TN_MUL, mul, TN__WRAP(a, *, b))                                                              \
    X(TN_DIV, div, tn__integer_div(a, b))                                                          \
    X(TN_MAXIMUM, maximum, a > b ? a : b)                                                          \
    X(TN_MINIMUM, minimum, a < b ? a : b)                                                          \
    X(TN_FMOD, fmod, tn__integer_fmod(a, b))                                                       \
    X(TN_REMAINDER, remainder, tn__integer_remainder(a, b))
/* clang-format on */

#endif
