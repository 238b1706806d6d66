/* ref's random numbers and dropout: element by element from tn_philox as backends/random.h says,
 * and their statistics. */
#include "ref.h"

static const tn_backend *ref;
static tn_context *ctx;
static const tn_random_key key = {.seed = 0x123456789abcdef0, .stream = 3, .call = 17};

/* Uniforms as the header documents them, from the words. */
static double uniform_24(int64_t i) {
    return (tn_philox(key.seed, key.stream, key.call, (uint64_t)i / 4).word[i % 4] >> 8) /
           16777216.0;
}

static uint64_t word_64(int64_t i) {
    tn_random4 r = tn_philox(key.seed, key.stream, key.call, (uint64_t)i / 2);
    return (uint64_t)r.word[i % 2 * 2 + 1] << 32 | r.word[i % 2 * 2];
}

static double uniform_53(int64_t i) {
    return (double)(word_64(i) >> 11) / 9007199254740992.0;
}

ARRAY_TEST(test_uniform) {
    for (int k = 0; k < 4; k++) {
        for (int layout = 0; layout < 2;
             layout++) { /* the element's index counts, not its address */
            array y = array_new(array_floats[k], layout ? SPREAD : DENSE, 2, (int64_t[]){9, 11});
            assert_int_equal(ref->random(ctx, &y.d, TN_UNIFORM, key, 0, 1), TN_OK);
            for (int64_t i = 0; i < y.count; i++) {
                double u = k == 1 ? uniform_53(i) : uniform_24(i);
                if (k < 2) {
                    assert_true(array_get(&y, i) == u);
                } else {
                    array_expect(&y, i, u, 1);
                }
            }
            array_check_gaps(&y);
            ref->random(ctx, &y.d, TN_UNIFORM, key, -3, 5);
            for (int64_t i = 0; i < y.count; i++) {
                array_expect_within(&y, i, -3 + 8 * (k == 1 ? uniform_53(i) : uniform_24(i)),
                                    k < 2 ? 1e-6 : 2e-2);
            }
        }
    }
}

/* `next` is the dtype's largest number below b. */
static void stays_below(tn_dtype dtype, double a, double b, double next) {
    array y = array_new(dtype, DENSE, 1, (int64_t[]){40000});
    double most = -INFINITY;
    assert_int_equal(ref->random(ctx, &y.d, TN_UNIFORM, key, a, b), TN_OK);
    for (int64_t i = 0; i < y.count; i++) {
        most = fmax(most, array_get(&y, i));
    }
    if (most != next) {
        fail_msg("%s in [%.17g, %.17g): the largest is %.17g", tn_dtype_name(dtype), a, b, most);
    }
}

/* Where numbers of the dtype are far apart, rounding would reach the upper end, and many draws
 * reach the number below it. */
ARRAY_TEST(test_uniform_stays_below_its_end) {
    stays_below(TN_BF16, 0, 1, 1 - 0x1p-8);
    stays_below(TN_BF16, 1, 2, 2 - 0x1p-7);
    stays_below(TN_BF16, -2, -1, -1 - 0x1p-7);
    stays_below(TN_BF16, 255, 257, 256); /* b is not one of its numbers */
    stays_below(TN_F16, 0, 1, 1 - 0x1p-11);
    stays_below(TN_F16, -3, -1, -1 - 0x1p-10);
    stays_below(TN_F16, 0, 4 * 0x1p-24, 3 * 0x1p-24);
    stays_below(TN_F16, -4 * 0x1p-24, 0, -0x1p-24);
    stays_below(TN_F32, 0x1p23, 0x1p23 + 4, 0x1p23 + 3);
    stays_below(TN_F32, 0x1p24 - 2, 0x1p24, 0x1p24 - 1);
    stays_below(TN_F64, 0x1p53 - 4, 0x1p53, 0x1p53 - 1);
    stays_below(TN_F64, -0x1p53 - 8, -0x1p53, -0x1p53 - 2);
    for (int k = 0; k < 4; k++) {
        stays_below(array_floats[k], 3, 3, 3);
        stays_below(array_floats[k], 1, 1 + 0x1p-60, 1);
    }
}

ARRAY_TEST(test_normal) {
    for (int k = 0; k < 4; k++) {
        /* an odd count: half a pair at the end */
        array y = array_new(array_floats[k], SPREAD, 2, (int64_t[]){7, 9});
        assert_int_equal(ref->random(ctx, &y.d, TN_NORMAL, key, 1, 2), TN_OK);
        for (int64_t i = 0; i < y.count; i++) {
            int64_t even = i & ~INT64_C(1);
            double u = k == 1 ? uniform_53(even) : uniform_24(even),
                   v = k == 1 ? uniform_53(even + 1) : uniform_24(even + 1);
            double r = sqrt(-2 * log1p(-u)),
                   z = i == even ? r * cos(2 * M_PI * v) : r * sin(2 * M_PI * v);
            array_expect_within(&y, i, 1 + 2 * z, k == 1 ? 1e-12 : k == 0 ? 1e-6 : 3e-2);
        }
        array_check_gaps(&y);
    }
    array y = array_new(TN_F32, DENSE, 1, (int64_t[]){100000});
    ref->random(ctx, &y.d, TN_NORMAL, key, 0, 1);
    double sum = 0, squares = 0, fourth = 0;
    for (int64_t i = 0; i < y.count; i++) {
        double z = array_get(&y, i);
        sum += z, squares += z * z, fourth += z * z * z * z;
    }
    assert_true(fabs(sum / 1e5) < 0.015 && fabs(squares / 1e5 - 1) < 0.02 &&
                fabs(fourth / 1e5 - 3) < 0.15);
}

ARRAY_TEST(test_integer) {
    for (int k = 0; k < 3; k++) {
        array y = array_new(array_integers[k], SPREAD, 1, (int64_t[]){3000});
        double low = k == 2 ? 3 : -3;
        int seen[7] = {0};
        assert_int_equal(ref->random(ctx, &y.d, TN_INTEGER, key, low, low + 7), TN_OK);
        for (int64_t i = 0; i < y.count; i++) {
            double v = array_get(&y, i);
            assert_true(v >= low && v < low + 7);
            assert_true(v == low + floor(7 * ((double)(word_64(i) >> 11) / 9007199254740992.0)));
            seen[(int)(v - low)]++;
        }
        for (int v = 0; v < 7; v++) {
            assert_true(seen[v] > 300);
        }
        array_check_gaps(&y);
        assert_int_equal(ref->random(ctx, &y.d, TN_NORMAL, key, 0, 1), TN_EUNSUPPORTED);
    }
    array f = array_new(TN_F32, DENSE, 1, (int64_t[]){1});
    assert_int_equal(ref->random(ctx, &f.d, TN_INTEGER, key, 0, 5), TN_EUNSUPPORTED);
}

ARRAY_TEST(test_bernoulli) {
    for (int k = 0; k < 4; k++) {
        array y = array_new(array_floats[k], SPREAD, 1, (int64_t[]){1001});
        assert_int_equal(ref->random(ctx, &y.d, TN_BERNOULLI, key, 0.3, 0), TN_OK);
        for (int64_t i = 0; i < y.count; i++) {
            assert_true(array_get(&y, i) == ((k == 1 ? uniform_53(i) : uniform_24(i)) < 0.3));
        }
        array_check_gaps(&y);
        ref->random(ctx, &y.d, TN_BERNOULLI, key, 1, 0);
        assert_true(array_get(&y, 0) == 1 && array_get(&y, 1000) == 1);
        ref->random(ctx, &y.d, TN_BERNOULLI, key, 0, 0);
        assert_true(array_get(&y, 0) == 0 && array_get(&y, 1000) == 0);
    }
}

ARRAY_TEST(test_dropout) {
    for (int k = 0; k < 8; k++) {
        tn_dtype dtype = array_floats[k / 2];
        array x = array_new(dtype, k % 2 ? SPREAD : DENSE, 2, (int64_t[]){13, 17}), y = x;
        y = array_new(dtype, k % 2 ? DENSE : SPREAD, 2, (int64_t[]){13, 17});
        array_vary(&x, 1);
        assert_int_equal(ref->dropout(ctx, &y.d, &x.d, 0.25, key), TN_OK);
        int kept = 0;
        for (int64_t i = 0; i < y.count; i++) {
            bool keep = uniform_24(i) >= 0.25; /* one mask for every dtype */
            kept += keep;
            array_expect(&y, i, keep ? array_get(&x, i) / 0.75 : 0, 3);
        }
        assert_true(kept > 221 * 0.65 && kept < 221 * 0.85);
        array_check_gaps(&y);
        assert_int_equal(ref->dropout(ctx, &x.d, &x.d, 0.25, key), TN_OK); /* in place */
        for (int64_t i = 0; i < y.count; i++) {
            assert_true(array_get(&x, i) == array_get(&y, i));
        }
    }
}

ARRAY_TEST(test_dropout_ends) {
    array x = array_of(TN_F32, 3, (double[]){1, NAN, INFINITY}),
          y = array_new(TN_F32, DENSE, 1, (int64_t[]){3});
    ref->dropout(ctx, &y.d, &x.d, 1, key); /* nothing is kept, not even NaN */
    assert_true(array_get(&y, 0) == 0 && array_get(&y, 1) == 0 && array_get(&y, 2) == 0);
    ref->dropout(ctx, &y.d, &x.d, 0, key);
    assert_true(array_get(&y, 0) == 1 && isnan(array_get(&y, 1)) && array_get(&y, 2) == INFINITY);
    array n = array_of(TN_I32, 1, (double[]){1});
    assert_int_equal(ref->dropout(ctx, &n.d, &n.d, 0.5, key), TN_EUNSUPPORTED);
}

/* A number equal to p is kept (and is not a success for Bernoulli); one a little below p is
 * dropped. */
ARRAY_TEST(test_thresholds) {
    for (int64_t i = 0; i < 40; i++) {
        array x = array_new(TN_F32, DENSE, 1, (int64_t[]){40}),
              y = array_new(TN_F32, DENSE, 1, (int64_t[]){40});
        ref->fill(ctx, &x.d, 1);
        ref->dropout(ctx, &y.d, &x.d, uniform_24(i), key);
        assert_true(array_get(&y, i) > 0);
        ref->dropout(ctx, &y.d, &x.d, uniform_24(i) + 0x1p-30, key);
        assert_true(array_get(&y, i) == 0);
        ref->random(ctx, &y.d, TN_BERNOULLI, key, uniform_24(i), 0);
        assert_true(array_get(&y, i) == 0);
        ref->random(ctx, &y.d, TN_BERNOULLI, key, uniform_24(i) + 0x1p-30, 0);
        assert_true(array_get(&y, i) == 1);
    }
}

ARRAY_TEST(test_keys_differ) {
    tn_random_key keys[4] = {key, key, key, key};
    keys[1].seed++, keys[2].stream++, keys[3].call++;
    array y[4];
    for (int k = 0; k < 4; k++) {
        y[k] = array_new(TN_F32, DENSE, 1, (int64_t[]){64});
        ref->random(ctx, &y[k].d, TN_UNIFORM, keys[k], 0, 1);
        for (int j = 0; j < k; j++) {
            assert_memory_not_equal(y[j].d.data, y[k].d.data, 256);
        }
    }
}

/* A part of a draw has the elements that the whole draw has there. */
ARRAY_TEST(test_parts_of_a_draw) {
    enum { N = 50 };
    static const struct {
        tn_dtype dtype;
        tn_random_kind kind;
    } draws[] = {{TN_F32, TN_UNIFORM}, {TN_BF16, TN_NORMAL},   {TN_F64, TN_UNIFORM},
                 {TN_F64, TN_NORMAL},  {TN_F32, TN_BERNOULLI}, {TN_I32, TN_INTEGER}};
    for (size_t k = 0; k < sizeof draws / sizeof *draws; k++) {
        array whole = array_new(draws[k].dtype, DENSE, 1, (int64_t[]){N});
        ref->random(ctx, &whole.d, draws[k].kind, key, 0.5, 3);
        for (int first = 0; first < N; first += 4) {
            array part = array_new(draws[k].dtype, DENSE, 1, (int64_t[]){N - first});
            tn_random_key from = key;
            from.first = (uint64_t)first;
            ref->random(ctx, &part.d, draws[k].kind, from, 0.5, 3);
            for (int i = first; i < N; i++) {
                assert_true(array_get(&part, i - first) == array_get(&whole, i));
            }
        }
    }
}

int main(void) {
    return tests_run(ref_begin, NULL);
}
