/* The vectorising polynomials against libm in double, over all of single precision: every 4093rd
 * bit pattern, and all special values. The bounds are those that backends/polynomials.h states. */
#include "arrays.h"

#include "backends/formulas.h"

/* |y - exact| in units of the exact value's last place. */
static double ulps_off(float y, double exact) {
    if (isnan(exact)) { return isnan(y) ? 0 : INFINITY; }
    if (isinf((float)exact)) { return y == (float)exact ? 0 : INFINITY; }
    int exponent;
    frexp(exact, &exponent);
    double unit = ldexp(1, exact == 0 || exponent < -125 ? -149 : exponent - 24);
    return fabs(y - exact) / unit;
}

static void sweep_within(float limit, float (*f)(float), double (*exact)(double), double bound) {
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 4093) {
        float x = tn__of_bits((uint32_t)bits);
        if (fabsf(x) > limit) { continue; }
        double error = ulps_off(f(x), exact(x));
        if (!(error <= bound)) { fail_msg("f(%a) = %a is off by %.3f ulp", x, f(x), error); }
    }
}

static void sweep_floats(float (*f)(float), double (*exact)(double), double bound) {
    sweep_within(INFINITY, f, exact, bound);
}

static float formula_sigmoid(float x) {
    return 1 / (1 + TN_FAST_F(exp)(-x));
}
static double exact_sigmoid(double x) {
    return x < -88 ? 0 : 1 / (1 + exp(-x)); /* below, exp(-x) overflows single precision */
}

PLAIN_TEST(test_exp) {
    sweep_floats(tn__expf, exp, 1.0);
    assert_true(tn__expf(0.0f) == 1.0f);
    assert_true(tn__expf(-INFINITY) == 0.0f);
    assert_true(isinf(tn__expf(88.8f)) && isinf(tn__expf(INFINITY)));
    assert_true(tn__expf(88.7f) < INFINITY);
    assert_true(isnan(tn__expf(NAN)) && isnan(tn__expf(-NAN)));
    assert_true(tn__expf(-103.0f) > 0.0f); /* a denormal */
}

PLAIN_TEST(test_tanh) {
    sweep_floats(tn__tanhf, tanh, 2.5);
    assert_true(tn__tanhf(1e30f) == 1.0f && tn__tanhf(-INFINITY) == -1.0f);
    assert_true(signbit(tn__tanhf(-0.0f)) && !signbit(tn__tanhf(0.0f)));
    assert_true(isnan(tn__tanhf(NAN)));
}

PLAIN_TEST(test_erf) {
    sweep_floats(tn__erff, erf, 1.5);
    assert_true(tn__erff(4.0f) == 1.0f && tn__erff(-INFINITY) == -1.0f);
    assert_true(signbit(tn__erff(-0.0f)) && isnan(tn__erff(NAN)));
}

PLAIN_TEST(test_log) {
    sweep_floats(tn__logf, log, 1.0);
    assert_true(tn__logf(1.0f) == 0.0f);
    assert_true(tn__logf(0.0f) == -INFINITY && tn__logf(-0.0f) == -INFINITY);
    assert_true(tn__logf(INFINITY) == INFINITY);
    assert_true(isnan(tn__logf(-1.0f)) && isnan(tn__logf(-INFINITY)) && isnan(tn__logf(NAN)));
}

PLAIN_TEST(test_expm1_log1p) {
    sweep_floats(tn__expm1f, expm1, 1.5);
    sweep_floats(tn__log1pf, log1p, 1.0);
    assert_true(tn__log1pf(0.0f) == 0.0f && tn__log1pf(-1.0f) == -INFINITY);
    assert_true(tn__log1pf(INFINITY) == INFINITY && isnan(tn__log1pf(-1.5f)));
}

PLAIN_TEST(test_sin_cos_tan) {
    sweep_within(TN__TURNS_LIMIT, tn__sinf, sin, 0.7);
    sweep_within(TN__TURNS_LIMIT, tn__cosf, cos, 0.7);
    sweep_within(TN__TURNS_LIMIT, tn__tanf, tan, 0.9);
    assert_true(signbit(tn__sinf(-0.0f)) && signbit(tn__tanf(-0.0f)) && tn__cosf(0.0f) == 1.0f);
    for (int k = 1; k < 600000; k++) { /* beside the zeros, where a remainder cancels */
        float x = (float)(k * 1.5707963267948966);
        if (!(ulps_off(tn__sinf(x), sin(x)) <= 0.7 && ulps_off(tn__cosf(x), cos(x)) <= 0.7 &&
              ulps_off(tn__tanf(x), tan(x)) <= 0.9)) {
            fail_msg("sin, cos or tan of %a", x);
        }
    }
}

PLAIN_TEST(test_sigmoid) {
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 4093) {
        float x = tn__of_bits((uint32_t)bits);
        double exact = exact_sigmoid(x);
        if (!isnan(x) && !(fabs(formula_sigmoid(x) - exact) <= 2.5 * 0x1p-23 * exact + 0x1p-126)) {
            fail_msg("sigmoid(%a) = %a", x, formula_sigmoid(x));
        }
    }
}

/* Both instantiations of each float formula agree; where they cancel, to the size of what
 * cancels. */
#define EVALUATE(code, name, formula) \
    case code:                        \
        return formula;
static float fast_unary(tn_unary f, float x, float k0, float k1) {
    switch (f) {
        TN_UNARY_FORMULAS(EVALUATE, float, TN_FAST_F)
    default:
        return 0;
    }
}
static double exact_unary(tn_unary f, double x, double k0, double k1) {
    switch (f) {
        TN_UNARY_FORMULAS(EVALUATE, double, TN_LIBM_D)
    default:
        return 0;
    }
}
static float fast_binary(tn_binary f, float a, float b) {
    switch (f) {
        TN_BINARY_FORMULAS(EVALUATE, float, TN_FAST_F)
    default:
        return 0;
    }
}
static double exact_binary(tn_binary f, double a, double b) {
    switch (f) {
        TN_BINARY_FORMULAS(EVALUATE, double, TN_LIBM_D)
    default:
        return 0;
    }
}

static void expect_close(const char *kind, int f, float x, float value, double exact) {
    if (isnan(exact) ? !isnan(value)
                     : !(fabs(value - exact) <= 1e-6 * (fabs(exact) + 0.5 * fabs(x) + 1e-3))) {
        fail_msg("%s formula %d at %.9g is %.9g, expected %.9g", kind, f, x, value, exact);
    }
}

PLAIN_TEST(test_all_formulas) {
    for (int i = -4000; i <= 4000; i++) {
        float x = (float)i / 400 + 1e-4f;
        for (int f = 0; f < TN_UNARY_COUNT; f++) {
            expect_close("unary", f, x, fast_unary(f, x, 1.5f, 2.5f), exact_unary(f, x, 1.5, 2.5));
        }
        for (int f = 0; f < TN_BINARY_COUNT; f++) {
            expect_close("binary", f, x, fast_binary(f, x, 0.75f), exact_binary(f, x, 0.75));
        }
    }
}

/* Far outside, gradients are 0 or dy and not inf * 0. */
PLAIN_TEST(test_far_away) {
    const float far[] = {100.0f, 1e10f, 1e25f, 3e38f};
    for (int i = 0; i < 4; i++) {
        assert_true(fast_binary(TN_GELU_TANH_GRAD, far[i], 2.0f) == 2.0f);
        assert_true(fast_binary(TN_GELU_TANH_GRAD, -far[i], 2.0f) == 0.0f);
        assert_true(fast_binary(TN_GELU_ERF_GRAD, far[i], 2.0f) == 2.0f);
        assert_true(fast_binary(TN_GELU_ERF_GRAD, -far[i], 2.0f) == 0.0f);
        assert_true(fast_binary(TN_SILU_GRAD, far[i], 2.0f) == 2.0f);
        assert_true(fast_binary(TN_SILU_GRAD, -far[i], 2.0f) == 0.0f);
        assert_true(fast_unary(TN_GELU_TANH, far[i], 0, 0) == far[i]);
        assert_true(fast_unary(TN_GELU_TANH, -far[i], 0, 0) == 0.0f);
        assert_true(fast_unary(TN_SILU, -far[i], 0, 0) == 0.0f || far[i] < 104.0f);
    }
}
