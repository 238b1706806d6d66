/* The arithmetic of reductions: every dtype and operation against the plainest formula, and special
 * cases: NaN, rounding once, overflow, the order of the ranks, aliases. */
#include "tern/sys/group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include "elements.h"

enum { RANKS = 5, MOST = 2500 };

static const int64_t COUNTS[] = {0, 1, 3, 17, 1000, 1024, 1025, MOST};

/* The expected result for one element of `ranks` inputs; exact in double. */
static double expected_element(tn_reduction how, tn_dtype dtype, void *const *x, int ranks,
                               int64_t i) {
    double y = get_element(dtype, x[0], i);
    for (int r = 1; r < ranks; r++) {
        double v = get_element(dtype, x[r], i);
        y = how == TN_PRODUCT ? y * v
            : how == TN_MIN   ? fmin(y, v)
            : how == TN_MAX   ? fmax(y, v)
                              : y + v;
    }
    if (how == TN_MEAN) { y = tn_dtype_is_float(dtype) ? y / ranks : trunc(y / ranks); }
    char one[8] = {0};
    if (dtype == TN_U8 || dtype == TN_I8) { y = fmod(y, 256.0); }
    put_element(dtype, one, 0, y);
    return get_element(dtype, one, 0);
}

/* Small whole numbers and quarters: sums are exact in f32 and f64, but not in f16 and bf16. */
static void fill_elements(tn_dtype dtype, void *x, int64_t n, int rank) {
    double quarter = tn_dtype_is_float(dtype) ? 0.25 : 1.0, low = dtype == TN_U8 ? 0.0 : -4.0;
    for (int64_t i = 0; i < n; i++) {
        put_element(dtype, x, i, quarter * (double)((i * 7 + rank * 5) % 23) + low);
    }
}

static void compare_elements(tn_dtype dtype, tn_reduction how, const void *y, const double *want,
                             int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double got = get_element(dtype, y, i);
        if (got != want[i]) {
            fail_msg("%s, operation %d, element %lld of %lld: %g, expected %g",
                     tn_dtype_name(dtype), (int)how, (long long)i, (long long)n, got, want[i]);
        }
    }
}

static void check_all(tn_dtype dtype, tn_reduction how, int ranks, int64_t n) {
    static double want[MOST];
    size_t bytes = (size_t)MOST * tn_dtype_size(dtype) + 1;
    unsigned char *x[RANKS], *y = malloc(bytes);
    for (int r = 0; r < ranks; r++) {
        x[r] = malloc(bytes);
        fill_elements(dtype, x[r], n, r);
    }
    for (int64_t i = 0; i < n; i++) {
        want[i] = expected_element(how, dtype, (void *const *)x, ranks, i);
    }
    size_t end = (size_t)n * tn_dtype_size(dtype);
    y[end] = 0x5a;
    tn__reduce_all(how, dtype, y, (const void *const *)x, ranks, n);
    compare_elements(dtype, how, y, want, n);
    assert_int_equal(y[end], 0x5a);
    /* In place: into each of the inputs. */
    unsigned char *kept = malloc(bytes);
    for (int r = 0; r < ranks; r++) {
        memcpy(kept, x[r], end);
        tn__reduce_all(how, dtype, x[r], (const void *const *)x, ranks, n);
        compare_elements(dtype, how, x[r], want, n);
        memcpy(x[r], kept, end);
    }
    free(kept);
    for (int r = 0; r < ranks; r++) {
        free(x[r]);
    }
    free(y);
}

PLAIN_TEST(test_all) {
    for (size_t d = 0; d < COUNT_OF(DTYPES); d++) {
        for (size_t h = 0; h < COUNT_OF(REDUCES); h++) {
            for (int ranks = 1; ranks <= RANKS; ranks++) {
                for (size_t c = 0; c < COUNT_OF(COUNTS); c++) {
                    check_all(DTYPES[d], REDUCES[h], ranks, COUNTS[c]);
                }
            }
        }
    }
}

PLAIN_TEST(test_nan_wins) {
    const tn_dtype floats[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (size_t d = 0; d < COUNT_OF(floats); d++) {
        for (int smallest = 0; smallest <= 1; smallest++) {
            for (int place = 0; place < 3; place++) {
                double x[3], y; /* storage for one element each */
                for (int r = 0; r < 3; r++) {
                    put_element(floats[d], &x[r], 0, r == place ? (double)NAN : r - 1.0);
                }
                tn__reduce_all(smallest ? TN_MIN : TN_MAX, floats[d], &y,
                               (const void *[]){&x[0], &x[1], &x[2]}, 3, 1);
                assert_true(isnan(get_element(floats[d], &y, 0)));
            }
        }
    }
}

/* 256 + 1 + 1 in bf16: rounding after each step would lose both ones. */
PLAIN_TEST(test_rounds_once) {
    tn_bf16 x[3] = {tn_bf16_from_float(256.0f), tn_bf16_from_float(1.0f), tn_bf16_from_float(1.0f)},
            y;
    const void *all[] = {&x[0], &x[1], &x[2]};
    tn__reduce_all(TN_SUM, TN_BF16, &y, all, 3, 1);
    assert_true(tn_bf16_to_float(y) == 258.0f);
    /* The same in f16: 2048 + 1 + 1. And the mean of three 60000s does not overflow. */
    tn_f16 f[3] = {tn_f16_from_float(2048.0f), tn_f16_from_float(1.0f), tn_f16_from_float(1.0f)}, g;
    const void *halves[] = {&f[0], &f[1], &f[2]};
    tn__reduce_all(TN_SUM, TN_F16, &g, halves, 3, 1);
    assert_true(tn_f16_to_float(g) == 2050.0f);
    f[0] = f[1] = f[2] = tn_f16_from_float(60000.0f);
    tn__reduce_all(TN_MEAN, TN_F16, &g, halves, 3, 1);
    assert_true(tn_f16_to_float(g) == 60000.0f);
}

PLAIN_TEST(test_order_of_ranks) {
    float x[3] = {1e8f, -1e8f, 1.0f}, y;
    tn__reduce_all(TN_SUM, TN_F32, &y, (const void *[]){&x[0], &x[1], &x[2]}, 3, 1);
    assert_true(y == 1.0f);
    tn__reduce_all(TN_SUM, TN_F32, &y, (const void *[]){&x[0], &x[2], &x[1]}, 3, 1);
    assert_true(y == 0.0f);
}

PLAIN_TEST(test_integers) {
    int32_t a = INT32_MAX, b = 2, y;
    tn__reduce_all(TN_SUM, TN_I32, &y, (const void *[]){&a, &b}, 2, 1);
    assert_int_equal(y, INT32_MIN + 1);
    tn__reduce_all(TN_PRODUCT, TN_I32, &y, (const void *[]){&a, &b}, 2, 1);
    assert_int_equal(y, -2);
    int64_t c = -4, d = -3, z;
    tn__reduce_all(TN_MEAN, TN_I64, &z, (const void *[]){&c, &d}, 2, 1);
    assert_int_equal(z, -3); /* rounded towards zero */
    c = INT64_MIN;
    d = -1;
    tn__reduce_all(TN_SUM, TN_I64, &z, (const void *[]){&c, &d}, 2, 1);
    assert_true(z == INT64_MAX);
    uint8_t e = 200, f = 100, w;
    tn__reduce_all(TN_SUM, TN_U8, &w, (const void *[]){&e, &f}, 2, 1);
    assert_int_equal(w, 44);
    e = 200;
    f = 201;
    tn__reduce_all(TN_MEAN, TN_U8, &w, (const void *[]){&e, &f}, 2, 1);
    assert_int_equal(w, 200);
    a = b = INT32_MAX;
    tn__reduce_all(TN_MEAN, TN_I32, &y, (const void *[]){&a, &b}, 2, 1);
    assert_int_equal(y, INT32_MAX);
}

/* A mean is the sum divided by the number of ranks, to the last bit. */
PLAIN_TEST(test_mean_bits) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        float x[4] = {0.1f, 1e-40f, 7.3f, -0.7f}, sum = x[0] + x[1], y;
        const void *all[] = {&x[0], &x[1], &x[2], &x[3]};
        for (int r = 2; r < ranks; r++) {
            sum += x[r];
        }
        tn__reduce_all(TN_MEAN, TN_F32, &y, all, ranks, 1);
        assert_true(y == sum / (float)ranks);
    }
}

/* An invalid reduction or dtype writes nothing. */
PLAIN_TEST(test_inert) {
    float x = 1.0f, y = 2.0f;
    tn__reduce_all(TN_NONE, TN_F32, &y, (const void *[]){&x, &x}, 2, 1);
    tn__reduce_all((tn_reduction)99, TN_F32, &y, (const void *[]){&x, &x}, 2, 1);
    tn__reduce_all(TN_SUM, TN_BOOL, &y, (const void *[]){&x, &x}, 2, 1);
    tn__reduce_all(TN_SUM, (tn_dtype)99, &y, (const void *[]){&x, &x}, 2, 1);
    tn__reduce_all(TN_SUM, TN_F32, NULL, (const void *[]){&x}, 1, 1);
    tn__reduce_all(TN_SUM, TN_F32, &y, NULL, 1, 1);
    tn__reduce_all(TN_SUM, TN_F32, &y, (const void *[]){&x}, 0, 1);
    tn__reduce_all(TN_SUM, TN_F32, &y, (const void *[]){&x, &x}, 2, -1);
    assert_true(y == 2.0f);
}
