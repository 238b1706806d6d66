/* ref's elementwise entries against formulas written here from their definitions. */
#include "ref.h"

#include <float.h>

/* ---- Floats against definitions -------------------------------------------------------------- */

static double d_neg(double x) {
    return -x;
}
static double d_sign(double x) {
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}
static double d_rsqrt(double x) {
    return pow(x, -0.5);
}
static double d_square(double x) {
    return pow(x, 2);
}
static double d_reciprocal(double x) {
    return pow(x, -1);
}
static double d_sigmoid(double x) {
    return 0.5 * (1 + tanh(x / 2));
}
static double d_relu(double x) {
    return fmax(x, 0);
}
static double d_gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double d_gelu_erf(double x) {
    return 0.5 * x * erfc(-x / sqrt(2));
}
static double d_silu(double x) {
    return x * d_sigmoid(x);
}
static double d_add_k(double x) {
    return x + 0.5;
}
static double d_mul_k(double x) {
    return x * 0.5;
}
static double d_sub_k(double x) {
    return x - 0.5;
}
static double d_div_k(double x) {
    return x / 0.5;
}
static double d_rsub_k(double x) {
    return 0.5 - x;
}
static double d_rdiv_k(double x) {
    return 0.5 / x;
}
static double d_pow_k(double x) {
    return pow(x, 0.5);
}
static double d_clamp_k(double x) {
    return fmin(fmax(x, 0.5), 1.25);
}

/* The tests of their operations compare the others with PyTorch. */
static const struct {
    tn_unary f;
    double (*exact)(double);
    bool positive; /* only defined there */
} unaries[] = {
    {TN_NEG, d_neg, false},
    {TN_ABS, fabs, false},
    {TN_SIGN, d_sign, false},
    {TN_EXP, exp, false},
    {TN_LOG, log, true},
    {TN_SQRT, sqrt, true},
    {TN_RSQRT, d_rsqrt, true},
    {TN_SQUARE, d_square, false},
    {TN_RECIPROCAL, d_reciprocal, true},
    {TN_SIN, sin, false},
    {TN_COS, cos, false},
    {TN_TANH, tanh, false},
    {TN_SIGMOID, d_sigmoid, false},
    {TN_RELU, d_relu, false},
    {TN_GELU_TANH, d_gelu_tanh, false},
    {TN_GELU_ERF, d_gelu_erf, false},
    {TN_ERF, erf, false},
    {TN_SILU, d_silu, false},
    {TN_ADD_K, d_add_k, false},
    {TN_MUL_K, d_mul_k, false},
    {TN_SUB_K, d_sub_k, false},
    {TN_DIV_K, d_div_k, false},
    {TN_RSUB_K, d_rsub_k, false},
    {TN_RDIV_K, d_rdiv_k, true},
    {TN_POW_K, d_pow_k, true},
    {TN_CLAMP_K, d_clamp_k, false},
};

ARRAY_TEST(test_unary) {
    for (size_t t = 0; t < sizeof unaries / sizeof *unaries; t++) {
        for (int k = 0; k < 8; k++) {
            tn_dtype dtype = array_floats[k / 2];
            array x = array_new(dtype, k % 2 ? SPREAD : DENSE, 2, (int64_t[]){7, 9});
            array y = array_new(dtype, k % 2 ? DENSE : SPREAD, 2, (int64_t[]){7, 9});
            array_vary(&x, 1);
            for (int64_t i = 0; i < x.count && unaries[t].positive; i++) {
                array_set(&x, i, fabs(array_get(&x, i)) + 0.0625);
            }
            assert_int_equal(ref->unary(ctx, unaries[t].f, &y.d, &x.d, 0.5, 1.25), TN_OK);
            for (int64_t i = 0; i < y.count; i++) {
                array_expect_within(&y, i, unaries[t].exact(array_get(&x, i)),
                                    (dtype == TN_F64   ? 1e-14
                                     : dtype == TN_F32 ? 6e-7
                                     : dtype == TN_F16 ? 1e-3
                                                       : 8e-3) *
                                        (1 + fabs(unaries[t].exact(array_get(&x, i)))));
            }
            array_check_gaps(&y);
            array_check_gaps(&x);
        }
    }
}

ARRAY_TEST(test_unary_in_place_and_empty) {
    array x = array_of(TN_F32, 3, (double[]){1, -2, 3});
    assert_int_equal(ref->unary(ctx, TN_SQUARE, &x.d, &x.d, 0, 0), TN_OK);
    assert_true(array_get(&x, 1) == 4 && array_get(&x, 2) == 9);
    array none = array_new(TN_F32, DENSE, 2, (int64_t[]){3, 0});
    none.d.data = NULL;
    assert_int_equal(ref->unary(ctx, TN_NEG, &none.d, &none.d, 0, 0), TN_OK);
    array scalar = array_new(TN_F64, DENSE, 0, NULL);
    array_set(&scalar, 0, 4);
    assert_int_equal(ref->unary(ctx, TN_SQRT, &scalar.d, &scalar.d, 0, 0), TN_OK);
    assert_true(array_get(&scalar, 0) == 2);
}

/* NaN in, NaN out (sign is 0, as PyTorch's); infinities and zeros. */
ARRAY_TEST(test_special_values) {
    for (int k = 0; k < 4; k++) {
        array x = array_of(array_floats[k], 4, (double[]){NAN, INFINITY, -INFINITY, -0.0});
        array y = array_new(array_floats[k], DENSE, 1, (int64_t[]){4});
        for (int f = 0; f < TN_UNARY_COUNT; f++) {
            assert_int_equal(ref->unary(ctx, (tn_unary)f, &y.d, &x.d, 1, 2), TN_OK);
            assert_true(f == TN_SIGN ? array_get(&y, 0) == 0 : isnan(array_get(&y, 0)));
        }
        ref->unary(ctx, TN_EXP, &y.d, &x.d, 0, 0);
        assert_true(isinf(array_get(&y, 1)) && array_get(&y, 2) == 0 && array_get(&y, 3) == 1);
        ref->unary(ctx, TN_TANH, &y.d, &x.d, 0, 0);
        assert_true(array_get(&y, 1) == 1 && array_get(&y, 2) == -1 && signbit(array_get(&y, 3)));
        ref->unary(ctx, TN_LOG, &y.d, &x.d, 0, 0);
        assert_true(array_get(&y, 1) == INFINITY && isnan(array_get(&y, 2)) &&
                    array_get(&y, 3) == -INFINITY);
        ref->unary(ctx, TN_CLAMP_K, &y.d, &x.d, -1, 2);
        assert_true(array_get(&y, 1) == 2 && array_get(&y, 2) == -1);
        ref->unary(ctx, TN_CLAMP_K, &y.d, &x.d, 3, 2); /* min(max(x, 3), 2) */
        assert_true(array_get(&y, 1) == 2 && array_get(&y, 2) == 2);
        array other = array_of(array_floats[k], 4, (double[]){1, NAN, NAN, NAN});
        for (int f = TN_MAXIMUM; f <= TN_MINIMUM; f++) {
            ref->binary(ctx, (tn_binary)f, &y.d, &x.d, &other.d);
            for (int i = 0; i < 4; i++) {
                assert_true(isnan(array_get(&y, i)));
            }
        }
    }
}

ARRAY_TEST(test_binary) {
    for (int k = 0; k < 8; k++) {
        tn_dtype dtype = array_floats[k / 2];
        array a = array_new(dtype, k % 2 ? SPREAD : DENSE, 3, (int64_t[]){3, 4, 5});
        array b = array_new(dtype, k % 2 ? DENSE : SPREAD, 3, (int64_t[]){3, 4, 5});
        array y = array_new(dtype, SPREAD, 3, (int64_t[]){3, 4, 5});
        array_vary(&a, 1);
        array_vary(&b, 2);
        b.d.stride[1] = 0; /* broadcast */
        for (int f = TN_ADD; f <= TN_MINIMUM; f++) {
            array_poison(&y);
            assert_int_equal(ref->binary(ctx, (tn_binary)f, &y.d, &a.d, &b.d), TN_OK);
            for (int64_t i = 0; i < y.count; i++) {
                double u = array_get(&a, i), v = array_get(&b, i);
                double expected = f == TN_ADD       ? u + v
                                  : f == TN_SUB     ? u - v
                                  : f == TN_MUL     ? u * v
                                  : f == TN_DIV     ? u / v
                                  : f == TN_POW     ? pow(u, v)
                                  : f == TN_MAXIMUM ? fmax(u, v)
                                                    : fmin(u, v);
                array_expect(&y, i, expected, f == TN_POW ? 2 : 1);
            }
            array_check_gaps(&y);
        }
    }
}

/* Each gradient formula is the slope of its function. */
ARRAY_TEST(test_gradient_formulas) {
    static const struct {
        tn_binary gradient;
        tn_unary f;
        bool of_output;
    } pairs[] = {
        {TN_TANH_GRAD, TN_TANH, true},          {TN_SIGMOID_GRAD, TN_SIGMOID, true},
        {TN_RELU_GRAD, TN_RELU, false},         {TN_GELU_TANH_GRAD, TN_GELU_TANH, false},
        {TN_GELU_ERF_GRAD, TN_GELU_ERF, false}, {TN_SILU_GRAD, TN_SILU, false},
    };
    for (int t = 0; t < 6; t++) {
        array x = array_new(TN_F64, DENSE, 1, (int64_t[]){100}), y[3],
              dy = array_new(TN_F64, DENSE, 1, (int64_t[]){100});
        array dx = array_new(TN_F64, DENSE, 1, (int64_t[]){100});
        array_vary(&dy, 3);
        for (int s = 0; s < 3; s++) { /* at x - h, x + h, x */
            for (int64_t i = 0; i < 100; i++) {
                array_set(&x, i, (double)i / 12 - 4.1 + (s == 0 ? -1e-5 : s == 1 ? 1e-5 : 0));
            }
            y[s] = array_new(TN_F64, DENSE, 1, (int64_t[]){100});
            ref->unary(ctx, pairs[t].f, &y[s].d, &x.d, 0, 0);
        }
        assert_int_equal(
            ref->binary(ctx, pairs[t].gradient, &dx.d, pairs[t].of_output ? &y[2].d : &x.d, &dy.d),
            TN_OK);
        for (int64_t i = 0; i < 100; i++) {
            double slope = (array_get(&y[1], i) - array_get(&y[0], i)) / 2e-5;
            array_expect_within(&dx, i, slope * array_get(&dy, i), 1e-9);
        }
        for (int k = 0; k < 4; k += 2) { /* and in the other precisions, the same numbers */
            array x2 = array_new(array_floats[k], DENSE, 1, (int64_t[]){100}), dy2 = x2, dx2 = x2;
            dy2 = array_new(array_floats[k], DENSE, 1, (int64_t[]){100});
            dx2 = array_new(array_floats[k], SPREAD, 1, (int64_t[]){100});
            ref->copy(ctx, &x2.d, pairs[t].of_output ? &y[2].d : &x.d);
            ref->copy(ctx, &dy2.d, &dy.d);
            ref->binary(ctx, pairs[t].gradient, &dx2.d, &x2.d, &dy2.d);
            for (int64_t i = 0; i < 100; i++) {
                array_expect_within(&dx2, i, array_get(&dx, i), k == 0 ? 2e-6 : 5e-2);
            }
        }
    }
}

/* relu's gradient at and around 0, and at NaN: dy only where x > 0. */
ARRAY_TEST(test_relu_gradient_at_zero) {
    array x = array_of(TN_F32, 4, (double[]){0, -0.0, NAN, 1e-40}),
          dy = array_of(TN_F32, 4, (double[]){NAN, NAN, 5, 5});
    array dx = array_new(TN_F32, DENSE, 1, (int64_t[]){4});
    ref->binary(ctx, TN_RELU_GRAD, &dx.d, &x.d, &dy.d);
    assert_true(array_get(&dx, 0) == 0 && array_get(&dx, 1) == 0 && array_get(&dx, 2) == 0 &&
                array_get(&dx, 3) == 5);
}

/* bf16 and f16 results are the f32 result rounded once. */
ARRAY_TEST(test_rounded_once) {
    for (int k = 2; k < 4; k++) {
        tn_dtype dtype = array_floats[k];
        array a = array_new(dtype, DENSE, 1, (int64_t[]){500}), b = a, y = a;
        b = array_new(dtype, DENSE, 1, (int64_t[]){500});
        y = array_new(dtype, DENSE, 1, (int64_t[]){500});
        array_vary(&a, 4);
        array_vary(&b, 5);
        ref->binary(ctx, TN_DIV, &y.d, &a.d, &b.d);
        for (int64_t i = 0; i < 500; i++) {
            float quotient = (float)array_get(&a, i) / (float)array_get(&b, i);
            float expected = dtype == TN_BF16 ? tn_bf16_to_float(tn_bf16_from_float(quotient))
                                              : tn_f16_to_float(tn_f16_from_float(quotient));
            assert_true(array_get(&y, i) == expected);
        }
    }
}

/* ---- Integers -------------------------------------------------------------------------------- */

static int64_t get_i64(const array *a, int64_t i) {
    return *(const int64_t *)(const void *)array_at(a, i);
}

ARRAY_TEST(test_integers) {
    for (int k = 0; k < 3; k++) {
        tn_dtype dtype = array_integers[k];
        array a = array_of(dtype, 6, (double[]){7, 7, 100, 0, 3, 200 - 100 * (k < 2)});
        array b = array_of(dtype, 6, (double[]){2, 0, 3, 5, 3, 1});
        array y = array_new(dtype, SPREAD, 1, (int64_t[]){6});
        for (int f = 0; f < TN_BINARY_COUNT; f++) {
            bool has = (f != TN_POW && f <= TN_MINIMUM) || f == TN_FMOD || f == TN_REMAINDER;
            assert_int_equal(ref->binary(ctx, (tn_binary)f, &y.d, &a.d, &b.d),
                             has ? TN_OK : TN_EUNSUPPORTED);
        }
        ref->binary(ctx, TN_DIV, &y.d, &a.d, &b.d);
        const double quotient[] = {3, 0, 33, 0, 1, 200 - 100 * (k < 2)};
        for (int i = 0; i < 6; i++) {
            assert_true(array_get(&y, i) == quotient[i]);
        }
        for (int f = TN_FMOD; f <= TN_REMAINDER; f++) {
            ref->binary(ctx, (tn_binary)f, &y.d, &a.d, &b.d);
            assert_true(array_get(&y, 0) == 1 && array_get(&y, 1) == 7 && array_get(&y, 4) == 0);
        }
        ref->binary(ctx, TN_MAXIMUM, &y.d, &a.d, &b.d);
        assert_true(array_get(&y, 0) == 7 && array_get(&y, 3) == 5);
        ref->binary(ctx, TN_MINIMUM, &y.d, &a.d, &b.d);
        assert_true(array_get(&y, 0) == 2 && array_get(&y, 3) == 0);
        ref->binary(ctx, TN_SUB, &y.d, &b.d, &a.d);
        assert_true(array_get(&y, 0) == (k == 2 ? 251 : -5)); /* u8 wraps */
        array_check_gaps(&y);
        for (int f = 0; f < TN_UNARY_COUNT; f++) {
            bool has = f == TN_NEG || f == TN_ABS || f == TN_SIGN || f == TN_SQUARE ||
                       f == TN_RELU || f == TN_ADD_K || f == TN_MUL_K || f == TN_SUB_K ||
                       f == TN_RSUB_K || f == TN_CLAMP_K;
            assert_int_equal(ref->unary(ctx, (tn_unary)f, &y.d, &a.d, 3, 5),
                             has ? TN_OK : TN_EUNSUPPORTED);
        }
        ref->unary(ctx, TN_CLAMP_K, &y.d, &a.d, 3, 50);
        assert_true(array_get(&y, 2) == 50 && array_get(&y, 3) == 3 && array_get(&y, 0) == 7);
        ref->unary(ctx, TN_RSUB_K, &y.d, &a.d, 10, 0);
        assert_true(array_get(&y, 0) == 3);
        ref->unary(ctx, TN_MUL_K, &y.d, &a.d, 2, 0);
        assert_true(array_get(&y, 2) == 200);
    }
}

/* Signed division rounds towards zero, and overflow wraps instead of trapping. */
ARRAY_TEST(test_signed_integers) {
    array a = array_new(TN_I64, DENSE, 1, (int64_t[]){5}),
          b = array_of(TN_I64, 5, (double[]){-1, 2, -2, 0, -1});
    array y = array_new(TN_I64, DENSE, 1, (int64_t[]){5});
    int64_t values[] = {INT64_MIN, -7, -7, -7, -7};
    memcpy(a.d.data, values, sizeof values);
    ref->binary(ctx, TN_DIV, &y.d, &a.d, &b.d);
    assert_true(get_i64(&y, 0) == INT64_MIN && get_i64(&y, 1) == -3 && get_i64(&y, 2) == 3 &&
                get_i64(&y, 3) == 0);
    assert_true(get_i64(&y, 4) == 7);
    ref->binary(ctx, TN_FMOD, &y.d, &a.d, &b.d);
    assert_true(get_i64(&y, 0) == 0 && get_i64(&y, 1) == -1 && get_i64(&y, 2) == -1 &&
                get_i64(&y, 3) == -7);
    ref->binary(ctx, TN_REMAINDER, &y.d, &a.d, &b.d);
    assert_true(get_i64(&y, 0) == 0 && get_i64(&y, 1) == 1 && get_i64(&y, 2) == -1 &&
                get_i64(&y, 3) == -7);
    ref->unary(ctx, TN_NEG, &y.d, &a.d, 0, 0);
    assert_true(get_i64(&y, 0) == INT64_MIN && get_i64(&y, 1) == 7);
    ref->unary(ctx, TN_ABS, &y.d, &a.d, 0, 0);
    assert_true(get_i64(&y, 1) == 7);
    ref->unary(ctx, TN_SIGN, &y.d, &b.d, 0, 0);
    assert_true(get_i64(&y, 0) == -1 && get_i64(&y, 1) == 1 && get_i64(&y, 3) == 0);
    ref->unary(ctx, TN_RELU, &y.d, &a.d, 0, 0);
    assert_true(get_i64(&y, 0) == 0);
    ref->binary(ctx, TN_ADD, &y.d, &a.d, &a.d);
    assert_true(get_i64(&y, 0) == 0 && get_i64(&y, 1) == -14);
    ref->binary(ctx, TN_MUL, &y.d, &a.d, &b.d);
    assert_true(get_i64(&y, 0) == INT64_MIN && get_i64(&y, 1) == -14);
    array f = array_of(TN_BOOL, 1, (double[]){1});
    assert_int_equal(ref->unary(ctx, TN_NEG, &f.d, &f.d, 0, 0), TN_EUNSUPPORTED);
    assert_int_equal(ref->binary(ctx, TN_ADD, &f.d, &f.d, &f.d), TN_EUNSUPPORTED);
}

/* ---- fill, arange, copy, compare, where ------------------------------------------------------ */

ARRAY_TEST(test_fill_and_arange) {
    for (int t = 0; t < TN_DTYPES; t++) {
        array y = array_new((tn_dtype)t, SPREAD, 3, (int64_t[]){2, 3, 4});
        assert_int_equal(ref->fill(ctx, &y.d, 3.0), TN_OK);
        for (int64_t i = 0; i < y.count; i++) {
            assert_true(array_get(&y, i) == (t == TN_BOOL ? 1 : 3));
        }
        assert_int_equal(ref->arange(ctx, &y.d, 2, 0.5), t == TN_BOOL ? TN_EUNSUPPORTED : TN_OK);
        for (int64_t i = 0; i < y.count && t != TN_BOOL; i++) {
            double value = 2 + 0.5 * (double)i;
            assert_true(array_get(&y, i) ==
                        (tn_dtype_is_float((tn_dtype)t) ? value : trunc(value)));
        }
        array_check_gaps(&y);
    }
    array flag = array_of(TN_BOOL, 1, (double[]){1});
    ref->fill(ctx, &flag.d, 0);
    assert_true(array_get(&flag, 0) == 0);
    ref->fill(ctx, &flag.d, 0.25);
    assert_true(array_get(&flag, 0) == 1);
}

/* Every pair of dtypes, on values that all of them hold. */
ARRAY_TEST(test_copy) {
    const double values[] = {0, 1, 2, 100, 127, 7};
    for (int from = 0; from < TN_DTYPES; from++) {
        for (int to = 0; to < TN_DTYPES; to++) {
            array x = array_new((tn_dtype)from, SPREAD, 2, (int64_t[]){2, 3});
            array y = array_new((tn_dtype)to, to % 2 ? SPREAD : DENSE, 2, (int64_t[]){2, 3});
            for (int64_t i = 0; i < 6; i++) {
                array_set(&x, i, from == TN_BOOL ? values[i] != 0 : values[i]);
            }
            assert_int_equal(ref->copy(ctx, &y.d, &x.d), TN_OK);
            for (int64_t i = 0; i < 6; i++) {
                double expected = from == TN_BOOL || to == TN_BOOL ? values[i] != 0 : values[i];
                assert_true(array_get(&y, i) == expected);
            }
            array_check_gaps(&y);
        }
    }
}

ARRAY_TEST(test_copy_rounds) {
    array x =
        array_of(TN_F64, 8, (double[]){-2.7, 2.7, NAN, INFINITY, -INFINITY, 1e300, -1.5, 0.3});
    array y = array_new(TN_I64, DENSE, 1, (int64_t[]){8});
    ref->copy(ctx, &y.d, &x.d);
    assert_true(get_i64(&y, 0) == -2 && get_i64(&y, 1) == 2 && get_i64(&y, 2) == 0);
    assert_true(get_i64(&y, 3) == INT64_MAX && get_i64(&y, 4) == INT64_MIN &&
                get_i64(&y, 5) == INT64_MAX);
    array flags = array_new(TN_BOOL, DENSE, 1, (int64_t[]){8});
    ref->copy(ctx, &flags.d, &x.d);
    for (int i = 0; i < 8; i++) {
        assert_true(array_get(&flags, i) == 1); /* NaN and 0.3 too */
    }
    array bytes = array_new(TN_U8, DENSE, 1, (int64_t[]){8});
    ref->copy(ctx, &bytes.d, &x.d);
    assert_true(array_get(&bytes, 6) == 255 && array_get(&bytes, 7) == 0);
    /* 2^54 + 2^30 + 1 is just above the midpoint of two floats; via double it would round down to
     * even. */
    array big = array_new(TN_I64, DENSE, 1, (int64_t[]){1}),
          f = array_new(TN_F32, DENSE, 1, (int64_t[]){1});
    *(int64_t *)big.d.data = (INT64_C(1) << 54) + (INT64_C(1) << 30) + 1;
    ref->copy(ctx, &f.d, &big.d);
    assert_true(array_get(&f, 0) == 0x1p54 + 0x1p31);
}

ARRAY_TEST(test_compare_and_where) {
    for (int t = 0; t < TN_DTYPES; t++) {
        tn_dtype dtype = (tn_dtype)t;
        const double left[] = {0, 1, 1, 0}, right[] = {0, 1, 0, 1};
        array a = array_new(dtype, SPREAD, 2, (int64_t[]){2, 2}),
              b = array_new(dtype, DENSE, 2, (int64_t[]){2, 2});
        array c = array_new(TN_BOOL, SPREAD, 2, (int64_t[]){2, 2}),
              y = array_new(dtype, SPREAD, 2, (int64_t[]){2, 2});
        for (int i = 0; i < 4; i++) {
            array_set(&a, i, left[i]);
            array_set(&b, i, right[i]);
        }
        for (int f = 0; f < TN_COMPARE_COUNT; f++) {
            array_poison(&c);
            assert_int_equal(ref->compare(ctx, (tn_compare)f, &c.d, &a.d, &b.d), TN_OK);
            for (int i = 0; i < 4; i++) {
                double u = left[i], v = right[i];
                bool expected[] = {u == v, u != v, u<v, u <= v, u> v, u >= v};
                assert_true(array_get(&c, i) == expected[f]);
            }
            array_check_gaps(&c);
        }
        for (int i = 0; i < 4; i++) {
            array_set(&c, i, i == 2 ? 77 : 0); /* any byte but 0 is true */
        }
        assert_int_equal(ref->where(ctx, &y.d, &c.d, &a.d, &b.d), TN_OK);
        for (int i = 0; i < 4; i++) {
            assert_true(array_get(&y, i) == (i == 2 ? left[i] : right[i]));
        }
        array_check_gaps(&y);
    }
    array nan = array_of(TN_F32, 1, (double[]){NAN}),
          c = array_new(TN_BOOL, DENSE, 1, (int64_t[]){1});
    for (int f = 0; f < TN_COMPARE_COUNT; f++) {
        ref->compare(ctx, (tn_compare)f, &c.d, &nan.d, &nan.d);
        assert_true(array_get(&c, 0) == (f == TN_NE));
    }
    assert_int_equal(ref->compare(ctx, TN_EQ, &nan.d, &nan.d, &nan.d), TN_EUNSUPPORTED);
    assert_int_equal(ref->where(ctx, &nan.d, &nan.d, &nan.d, &nan.d), TN_EUNSUPPORTED);
}

int main(void) {
    return tests_run(ref_begin, NULL);
}
