/* unary and binary: every formula of backends/formulas.h as a vectorised loop
 * over contiguous f32 or f64.
 *
 * A piece of a row whose operands are contiguous f32 or f64 goes straight to the loop. Everything
 * else (bf16, f16, strides, a broadcast scalar) passes through small buffers, TILE elements at a
 * time. Integers are left to ref.
 */
#include "backends/cpu/convert.h"
#include "backends/cpu/loop.h"
#include "backends/cpu/rows.h"
#include "backends/formulas.h"

typedef void unary_f32(float *y, const float *x, float k0, float k1, int64_t n);
typedef void unary_f64(double *y, const double *x, double k0, double k1, int64_t n);
typedef void binary_f32(float *y, const float *a, const float *b, int64_t n);
typedef void binary_f64(double *y, const double *a, const double *b, int64_t n);

static const volatile float slope_limit = 30; /* volatile like the limits in rows.h */

/* gelu's slope as in backends/formulas.h, with s the sigmoid; x is clamped so that its square
 * cannot overflow. */
INLINE float gelu_slope(float x, float s, float limit) {
    x = x < -limit ? -limit : x;
    x = x > limit ? limit : x;
    return s + x * s * (1 - s) * (1.5957691216057308f * (1 + 0.134145f * x * x));
}

/* y may be an input's memory: an element of y depends only on its own inputs, as omp simd requires.
 * low_ and high_ are what exp_between takes. */
#define UNARY_LOOP(T, kind, name, formula)                                   \
    static void kind##_##name(T *y, const T *input, T k0, T k1, int64_t n) { \
        const float low_ = exp_limits[0], high_ = exp_limits[1];             \
        (void)k0, (void)k1, (void)low_, (void)high_;                         \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                \
            T x = input[i];                                                  \
            y[i] = (formula);                                                \
        }                                                                    \
    }
#define BINARY_LOOP(T, kind, name, formula)                                            \
    static void kind##_##name(T *y, const T *left, const T *right, int64_t n) {        \
        const float low_ = exp_limits[0], high_ = exp_limits[1], limit_ = slope_limit; \
        (void)low_, (void)high_, (void)limit_;                                         \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                          \
            T a = left[i], b = right[i];                                               \
            y[i] = (formula);                                                          \
        }                                                                              \
    }

/* The formulas' mathematics: as TN_FAST_F, but exp is exp_between. */
#define CPU_FAST(name) CPU_FAST_##name
#define CPU_FAST_exp(x) exp_between(x, low_, high_)
#define CPU_FAST_fabs tn__fabsf
#define CPU_FAST_log tn__logf
#define CPU_FAST_sqrt tn__sqrtf
#define CPU_FAST_sin tn__sinf
#define CPU_FAST_cos tn__cosf
#define CPU_FAST_tanh tn__tanhf
#define CPU_FAST_erf tn__erff
#define CPU_FAST_pow tn__powf
#define CPU_FAST_expm1 tn__expm1f
#define CPU_FAST_log1p tn__log1pf
#define CPU_FAST_floor tn__floorf
#define CPU_FAST_ceil tn__ceilf
#define CPU_FAST_rint tn__rintf
#define CPU_FAST_tan tn__tanf
#define CPU_FAST_asin tn__asinf
#define CPU_FAST_acos tn__acosf
#define CPU_FAST_atan tn__atanf
#define CPU_FAST_atan2 tn__atan2f
#define CPU_FAST_fmod tn__fmodf
#define CPU_FAST_sinh tn__sinhf
#define CPU_FAST_cosh tn__coshf
#define UNARY_F32(code, name, formula) UNARY_LOOP(float, u32, name, formula)
#define UNARY_F64(code, name, formula) UNARY_LOOP(double, u64, name, formula)
#define BINARY_F32(code, name, formula) BINARY_LOOP(float, b32, name, formula)
#define BINARY_F64(code, name, formula) BINARY_LOOP(double, b64, name, formula)
TN_UNARY_FORMULAS(UNARY_F32, float, CPU_FAST)
TN_UNARY_FORMULAS(UNARY_F64, double, TN_LIBM_D)
TN_BINARY_FORMULAS(BINARY_F32, float, CPU_FAST)
TN_BINARY_FORMULAS(BINARY_F64, double, TN_LIBM_D)

#define UNARY_NAME_F32(code, name, formula) [code] = u32_##name,
#define UNARY_NAME_F64(code, name, formula) [code] = u64_##name,
#define BINARY_NAME_F32(code, name, formula) [code] = b32_##name,
#define BINARY_NAME_F64(code, name, formula) [code] = b64_##name,
/* exp itself also returns denormals; gelu's gradient is the formula with gelu_slope. */
UNARY_LOOP(float, own, exp, tn__expf(x))
BINARY_LOOP(float, own, gelu_tanh_grad,
            b *gelu_slope(a, 1 / (1 + CPU_FAST(exp)(-tn__gelu_u_float(a))), limit_))

static unary_f32 *const unary_loops_f32[TN_UNARY_COUNT] = {
    TN_UNARY_FORMULAS(UNARY_NAME_F32, float, TN_FAST_F)};
static unary_f64 *const unary_loops_f64[TN_UNARY_COUNT] = {
    TN_UNARY_FORMULAS(UNARY_NAME_F64, double, TN_LIBM_D)};
static binary_f32 *const binary_loops_f32[TN_BINARY_COUNT] = {
    TN_BINARY_FORMULAS(BINARY_NAME_F32, float, TN_FAST_F)};
static binary_f64 *const binary_loops_f64[TN_BINARY_COUNT] = {
    TN_BINARY_FORMULAS(BINARY_NAME_F64, double, TN_LIBM_D)};

static bool turns_are_many(float x) {
    return fabsf(x) > TN__TURNS_LIMIT;
}

/* Whether the polynomials of sin, cos and tan hold for all of x. */
static bool turns_are_few(const float *x, int64_t n) {
    int far = 0;
#pragma omp simd reduction(| : far)
    for (int64_t i = 0; i < n; i++) {
        far |= turns_are_many(x[i]);
    }
    return !far;
}

/* What an element becomes depends on it alone: where the polynomial does not hold for one, libm
 * gives that one. */
#define TURNS_LOOP(name)                                                              \
    static void own_##name(float *y, const float *x, float k0, float k1, int64_t n) { \
        for (int64_t at = 0; at < n; at += TILE) {                                    \
            int64_t m = min_of(TILE, n - at);                                         \
            if (turns_are_few(x + at, m)) {                                           \
                u32_##name(y + at, x + at, k0, k1, m);                                \
                continue;                                                             \
            }                                                                         \
            float in[TILE]; /* y may be its memory */                                 \
            memcpy(in, x + at, (size_t)m * sizeof(float));                            \
            u32_##name(y + at, in, k0, k1, m);                                        \
            for (int64_t i = 0; i < m; i++) {                                         \
                y[at + i] = turns_are_many(in[i]) ? name##f(in[i]) : y[at + i];       \
            }                                                                         \
        }                                                                             \
    }
TURNS_LOOP(sin)
TURNS_LOOP(cos)
TURNS_LOOP(tan)

/* Loops that take the place of the formula's. */
static unary_f32 *const own_loops_f32[TN_UNARY_COUNT] = {
    [TN_EXP] = own_exp, [TN_SIN] = own_sin, [TN_COS] = own_cos, [TN_TAN] = own_tan};

typedef struct unary_call {
    const tn_desc *y, *x;
    unary_f32 *f32;
    unary_f64 *f64;
    double k0, k1;
} unary_call;
typedef struct binary_call {
    const tn_desc *y, *a, *b;
    binary_f32 *f32;
    binary_f64 *f64;
} binary_call;

/* The two bodies of each entry, for compute type T; `plain` is the dtype that needs no
 * conversion. */
#define UNARY_BODY(T, kind, plain)                                                                \
    static void unary_body_##kind(const void *user, const element_loop *loop, const int64_t *off, \
                                  int64_t n) {                                                    \
        const unary_call *c = user;                                                               \
        int64_t sy = inner_stride(loop, 0), sx = inner_stride(loop, 1);                           \
        T k0 = (T)c->k0, k1 = (T)c->k1;                                                           \
        if (c->y->dtype == plain && ((sy == 1 && sx == 1) || n == 1)) {                           \
            c->kind((T *)desc_at(c->y, off[0]), (const T *)desc_at(c->x, off[1]), k0, k1, n);     \
            return;                                                                               \
        }                                                                                         \
        T buffer[TILE];                                                                           \
        for (int64_t i = 0; i < n; i += TILE) {                                                   \
            int64_t m = min_of(TILE, n - i);                                                      \
            load_##kind(buffer, desc_at(c->x, off[1] + i * sx), c->x->dtype, sx, m);              \
            c->kind(buffer, buffer, k0, k1, m);                                                   \
            store_##kind(desc_at(c->y, off[0] + i * sy), c->y->dtype, sy, buffer, m);             \
        }                                                                                         \
    }
UNARY_BODY(float, f32, TN_F32)
UNARY_BODY(double, f64, TN_F64)

#define BINARY_BODY(T, kind, plain)                                                                \
    static void binary_body_##kind(const void *user, const element_loop *loop, const int64_t *off, \
                                   int64_t n) {                                                    \
        const binary_call *c = user;                                                               \
        int64_t sy = inner_stride(loop, 0), sa = inner_stride(loop, 1),                            \
                sb = inner_stride(loop, 2);                                                        \
        bool is_plain = c->y->dtype == plain;                                                      \
        if (is_plain && ((sy == 1 && sa == 1 && sb == 1) || n == 1)) {                             \
            c->kind((T *)desc_at(c->y, off[0]), (const T *)desc_at(c->a, off[1]),                  \
                    (const T *)desc_at(c->b, off[2]), n);                                          \
            return;                                                                                \
        }                                                                                          \
        T left[TILE], right[TILE], out[TILE];                                                      \
        for (int64_t i = 0; i < n; i += TILE) {                                                    \
            int64_t m = min_of(TILE, n - i);                                                       \
            T *y = (T *)desc_at(c->y, off[0] + i * sy);                                            \
            const T *a = (const T *)desc_at(c->a, off[1] + i * sa),                                \
                    *b = (const T *)desc_at(c->b, off[2] + i * sb);                                \
            if (!(is_plain && sa == 1)) {                                                          \
                if (sa != 0 || i == 0) { load_##kind(left, a, c->a->dtype, sa, m); }               \
                a = left;                                                                          \
            }                                                                                      \
            if (!(is_plain && sb == 1)) {                                                          \
                if (sb != 0 || i == 0) { load_##kind(right, b, c->b->dtype, sb, m); }              \
                b = right;                                                                         \
            }                                                                                      \
            bool direct = is_plain && sy == 1;                                                     \
            c->kind(direct ? y : out, a, b, m);                                                    \
            if (!direct) { store_##kind(y, c->y->dtype, sy, out, m); }                             \
        }                                                                                          \
    }
BINARY_BODY(float, f32, TN_F32)
BINARY_BODY(double, f64, TN_F64)

tn_status TN_CPU(unary)(tn_context *ctx, tn_unary f, const tn_desc *y, const tn_desc *x, double k0,
                        double k1) {
    if (y->dtype != x->dtype || !is_float(x->dtype)) {
        return TN_CPU(ref)->unary(ctx, f, y, x, k0, k1);
    }
    element_loop loop;
    TN_CPU(loop_init)(&loop, 2, (const tn_desc *[]){y, x});
    unary_f32 *f32 = own_loops_f32[f] ? own_loops_f32[f] : unary_loops_f32[f];
    unary_call call = {y, x, f32, unary_loops_f64[f], k0, k1};
    TN_CPU(loop_run)(&loop, x->dtype == TN_F64 ? unary_body_f64 : unary_body_f32, &call);
    return TN_OK;
}

tn_status TN_CPU(binary)(tn_context *ctx, tn_binary f, const tn_desc *y, const tn_desc *a,
                         const tn_desc *b) {
    if (y->dtype != a->dtype || y->dtype != b->dtype || !is_float(y->dtype)) {
        return TN_CPU(ref)->binary(ctx, f, y, a, b);
    }
    element_loop loop;
    TN_CPU(loop_init)(&loop, 3, (const tn_desc *[]){y, a, b});
    binary_f32 *f32 = f == TN_GELU_TANH_GRAD ? own_gelu_tanh_grad : binary_loops_f32[f];
    binary_call call = {y, a, b, f32, binary_loops_f64[f]};
    TN_CPU(loop_run)(&loop, y->dtype == TN_F64 ? binary_body_f64 : binary_body_f32, &call);
    return TN_OK;
}
