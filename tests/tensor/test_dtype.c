/* Dtypes, and the two 16-bit floats: all 65536 patterns, and rounding. */
#include "tern/tensor.h"

#include <math.h>
#include <string.h>

#include "tests/support/test.h"

/* What the bits mean, from the definition: sign, exponent with its bias,
 * fraction of `places` bits. */
static double value_of_bits(uint16_t bits, int places, int bias) {
    int exponents = 15 - places;
    int exponent = (bits >> places) & ((1 << exponents) - 1), fraction = bits & ((1 << places) - 1);
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == (1 << exponents) - 1) { return fraction ? NAN : sign * INFINITY; }
    return sign * ldexp(fraction + (exponent ? 1 << places : 0),
                        (exponent ? exponent : 1) - bias - places);
}

static uint16_t f16_bits(float x) {
    return tn_f16_from_float(x).bits;
}
static uint16_t bf16_bits(float x) {
    return tn_bf16_from_float(x).bits;
}

static void check_all(int places, int bias, float (*to_float)(uint16_t),
                      uint16_t (*from_float)(float)) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        double exact = value_of_bits((uint16_t)bits, places, bias);
        float x = to_float((uint16_t)bits);
        if (isnan(exact)) {
            assert_true(isnan(x));
            assert_true(isnan(to_float(from_float(x))));
            assert_int_equal(from_float(x) >> 15, bits >> 15);
            continue;
        }
        assert_true((double)x == exact && !signbit(x) == !signbit(exact));
        assert_int_equal(from_float(x), bits);
    }
}

/* Between neighbours: down below the middle, up above it, to the even one in the middle. Up to the
 * last finite value, and from there to infinity. */
static void check_rounding(int places, int bias, uint16_t (*from_float)(float)) {
    uint32_t infinity = (0x7fffu >> places) << places;
    for (uint32_t bits = 0; bits < infinity; bits++) {
        double low = value_of_bits((uint16_t)bits, places, bias);
        double high = bits + 1 < infinity
                          ? value_of_bits((uint16_t)(bits + 1), places, bias)
                          : 2 * low - value_of_bits((uint16_t)(bits - 1), places, bias);
        float middle = (float)((low + high) / 2);
        uint32_t even = bits + (bits & 1);
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            float s = sign ? -1 : 1;
            assert_int_equal(from_float(s * middle), sign | even);
            assert_int_equal(from_float(s * nextafterf(middle, 0)), sign | bits);
            assert_int_equal(from_float(s * nextafterf(middle, INFINITY)), sign | (bits + 1));
        }
    }
}

static float f16_float(uint16_t bits) {
    return tn_f16_to_float((tn_f16){bits});
}
static float bf16_float(uint16_t bits) {
    return tn_bf16_to_float((tn_bf16){bits});
}

PLAIN_TEST(test_f16) {
    check_all(10, 15, f16_float, f16_bits);
    check_rounding(10, 15, f16_bits);
    assert_int_equal(f16_bits(65504), 0x7bff);
    assert_int_equal(f16_bits(65519.996f), 0x7bff);
    assert_int_equal(f16_bits(65520), 0x7c00);
    assert_int_equal(f16_bits(3e38f), 0x7c00);
    assert_int_equal(f16_bits(-INFINITY), 0xfc00);
    assert_int_equal(f16_bits(1e-45f), 0);
}

PLAIN_TEST(test_bf16) {
    check_all(7, 127, bf16_float, bf16_bits);
    check_rounding(7, 127, bf16_bits);
    assert_int_equal(bf16_bits(3.4028235e38f), 0x7f80);
    assert_int_equal(bf16_bits(-INFINITY), 0xff80);
    assert_int_equal(bf16_bits(-0.0f), 0x8000);
}

PLAIN_TEST(test_names_and_sizes) {
    static const char *const names[] = {"f32", "f64", "bf16", "f16", "i64",
                                        "i32", "u8",  "bool", "i8"};
    static const size_t sizes[] = {4, 8, 2, 2, 8, 4, 1, 1, 1};
    for (int d = 0; d < TN_DTYPES; d++) {
        assert_string_equal(tn_dtype_name((tn_dtype)d), names[d]);
        assert_int_equal(tn_dtype_size((tn_dtype)d), sizes[d]);
        assert_int_equal(tn_dtype_is_float((tn_dtype)d), d <= TN_F16);
    }
    assert_string_equal(tn_dtype_name((tn_dtype)99), "unknown");
    assert_int_equal(tn_dtype_size((tn_dtype)-1), 0);
    assert_false(tn_dtype_is_float((tn_dtype)99));
}
