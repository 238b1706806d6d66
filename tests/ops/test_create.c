/* New tensors: values, counts, dtypes, random draws, and what is refused. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static double element_at(const tn_tensor *t, int64_t i) {
    return tn_at(t, TN_DIMS(i));
}

TEST(one_value_in_every_dtype) {
    for (int d = 0; d < TN_DTYPES; d++) {
        tn_tensor *y = tn_full(TN_DIMS(3, 2), 1.0, (tn_dtype)d);
        assert_int_equal(tn_dtype_of(y), d);
        assert_true(tn_equal(y, tn_ones(TN_DIMS(3, 2), (tn_dtype)d)));
        assert_true(tn_equal(tn_zeros_like(y), tn_zeros(TN_DIMS(3, 2), (tn_dtype)d)));
        assert_true(tn_equal(tn_ones_like(y), y));
        assert_false(tn_equal(tn_zeros_like(y), y));
    }
    assert_int_equal(tn_ndim(tn_scalar(2.5, TN_F32)), 0);
    assert_float_equal(tn_item(tn_scalar(2.5, TN_F32)), 2.5, 0.0);
    assert_int_equal(tn_count(tn_zeros(TN_DIMS(2, 0), TN_F32)), 0);
}

/* zeros_like of a view is contiguous and owns its memory. */
TEST(like_a_view) {
    tn_tensor *x = tn_arange(0, 6, 1, TN_I64), *v = tn_t(tn_reshape(x, TN_DIMS(2, 3)));
    tn_tensor *y = tn_zeros_like(v);
    assert_int_equal(tn_size(y, 0), 3);
    assert_true(tn_is_contiguous(y));
    assert_false(tn_shares_storage(x, y));
    assert_float_equal(element_at(x, 5), 5.0, 0.0);
}

TEST(values_that_do_not_fit) {
    assert_inert(tn_full(TN_DIMS(2), 256.0, TN_U8), TN_EVALUE, "256 is not a value of u8");
    assert_inert(tn_full(TN_DIMS(2), -1.0, TN_U8), TN_EVALUE, "u8");
    assert_inert(tn_full(TN_DIMS(2), 128.0, TN_I8), TN_EVALUE, "128 is not a value of i8");
    assert_float_equal(element_at(tn_full(TN_DIMS(2), -128.0, TN_I8), 1), -128.0, 0.0);
    assert_inert(tn_full(TN_DIMS(2), NAN, TN_I64), TN_EVALUE, "i64");
    assert_inert(tn_full(TN_DIMS(2), 0x1p63, TN_I64), TN_EVALUE, "i64");
    assert_inert(tn_full(TN_DIMS(2), 0x1p31, TN_I32), TN_EVALUE, "i32");
    assert_inert(tn_zeros(TN_DIMS(2, -1), TN_F32), TN_ESHAPE, "");
}

TEST(arange_counts) {
    const struct {
        double start, end, step;
        int64_t count;
        double last;
    } cases[] = {
        {0, 5, 1, 5, 4},   {0, 5, 2, 3, 4},   {5, 0, -2, 3, 1},      {-1, 2, 1, 3, 1},
        {0, 0, 1, 0, NAN}, {5, 0, 1, 0, NAN}, {0, 1, 0.25, 4, 0.75}, {0, 1, 0.3, 4, 0.9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_tensor *y = tn_arange(cases[i].start, cases[i].end, cases[i].step, TN_F64);
        assert_int_equal(tn_count(y), cases[i].count);
        if (cases[i].count) {
            assert_float_equal(element_at(y, 0), cases[i].start, 0.0);
            assert_float_equal(element_at(y, cases[i].count - 1), cases[i].last, 1e-12);
        }
    }
    assert_float_equal(element_at(tn_arange(250, 256, 1, TN_U8), 5), 255.0, 0.0);
    assert_int_equal(tn_error(), TN_OK);
    assert_inert(tn_arange(0, 1, 0, TN_F32), TN_EVALUE, "step must not be 0");
    assert_inert(tn_arange(0, NAN, 1, TN_F32), TN_EVALUE, "finite");
    assert_inert(tn_arange(0, INFINITY, 1, TN_F32), TN_EVALUE, "finite");
    assert_inert(tn_arange(0, 1e300, 1, TN_F32), TN_EVALUE, "counted");
    assert_inert(tn_arange(0, 2, 0.5, TN_I64), TN_EVALUE, "whole");
    assert_inert(tn_arange(0, 257, 1, TN_U8), TN_EVALUE, "cannot hold");
    assert_inert(tn_arange(0, 2, 1, TN_BOOL), TN_EDTYPE, "bool");
}

/* The same seed gives the same numbers, each call takes one step of the generator, and no call
 * repeats another's numbers. */
TEST(draws_follow_the_seed) {
    tn_seed(7);
    tn_tensor *a = tn_rand(TN_DIMS(100), TN_F32), *b = tn_rand(TN_DIMS(100), TN_F32);
    assert_int_equal(tn_default_generator()->call, 2);
    tn_seed(7);
    assert_true(tn_equal(a, tn_rand(TN_DIMS(100), TN_F32)));
    assert_true(tn_equal(b, tn_rand(TN_DIMS(10, 10), TN_F32)) == false);
    tn_default_generator()->call = 1;
    assert_true(tn_equal(b, tn_reshape(tn_rand(TN_DIMS(10, 10), TN_F32), TN_DIMS(100))));
    assert_false(tn_equal(a, b));
    tn_default_generator()->stream = 1;
    tn_default_generator()->call = 0;
    assert_false(tn_equal(a, tn_rand(TN_DIMS(100), TN_F32)));
    tn_seed(8);
    assert_false(tn_equal(a, tn_rand(TN_DIMS(100), TN_F32)));
}

TEST(distributions_of_draws) {
    tn_seed(1);
    const tn_dtype floats[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (int i = 0; i < 4; i++) {
        tn_tensor *u = tn_cast(tn_rand(TN_DIMS(20000), floats[i]), TN_F64);
        assert_true(tn_item(tn_min(u, TN_DIMS(), false)) >= 0.0);
        assert_true(tn_item(tn_max(u, TN_DIMS(), false)) < 1.0);
        assert_float_equal(tn_item(tn_mean_all(u)), 0.5, 0.02);
        assert_float_equal(tn_item(tn_var(u, TN_DIMS(), 1, false)), 1.0 / 12.0, 0.005);
        tn_tensor *z = tn_cast(tn_randn(TN_DIMS(20000), floats[i]), TN_F64);
        assert_float_equal(tn_item(tn_mean_all(z)), 0.0, 0.04);
        assert_float_equal(tn_item(tn_var(z, TN_DIMS(), 1, false)), 1.0, 0.05);
    }
    const tn_dtype integers[] = {TN_I64, TN_I32, TN_U8, TN_I8};
    for (int i = 0; i < 4; i++) {
        tn_tensor *k = tn_randint(3, 10, TN_DIMS(7000), integers[i]);
        assert_int_equal(tn_dtype_of(k), integers[i]);
        for (int v = 3; v < 10; v++) {
            tn_tensor *hits = tn_eq(k, tn_scalar(v, integers[i]));
            assert_float_equal(tn_item(tn_sum_all(tn_cast(hits, TN_I64))), 1000.0, 150.0);
        }
        assert_true(tn_item(tn_min(k, TN_DIMS(), false)) == 3.0);
        assert_true(tn_item(tn_max(k, TN_DIMS(), false)) == 9.0);
    }
}

/* The same numbers as a draw of that shape and dtype; tn_random_normal is the first of f64. */
TEST(draws_like_others) {
    const tn_dtype floats[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (int i = 0; i < 4; i++) {
        tn_tensor *x = tn_t(tn_zeros(TN_DIMS(3, 5), floats[i])), *y[2], *z[2];
        for (int k = 0; k < 2; k++) {
            tn_seed(9);
            y[k] = k ? tn_rand_like(x) : tn_rand(TN_DIMS(5, 3), floats[i]);
            z[k] = k ? tn_randn_like(x) : tn_randn(TN_DIMS(5, 3), floats[i]);
        }
        assert_true(tn_equal(y[0], y[1]) && tn_equal(z[0], z[1]) && !tn_equal(y[0], z[0]));
        assert_int_equal(tn_dtype_of(z[1]), floats[i]);
    }
    tn_generator one = {.seed = 3}, all = one;
    for (int i = 0; i < 100; i++) {
        tn_tensor *z = tn_normal_(tn_empty(TN_DIMS(4), TN_F64), 0.0, 1.0, &all);
        assert_float_equal(tn_random_normal(&one), tn_at(z, TN_DIMS(0)), 1e-12);
        assert_int_equal(one.call, all.call);
    }
}

TEST(draws_refused) {
    uint64_t call = tn_default_generator()->call;
    assert_inert(tn_rand(TN_DIMS(2), TN_I64), TN_EDTYPE, "i64");
    assert_inert(tn_randn(TN_DIMS(2), TN_BOOL), TN_EDTYPE, "bool");
    assert_inert(tn_rand_like(tn_zeros(TN_DIMS(2), TN_I64)), TN_EDTYPE, "rand_like: the dtype is");
    assert_inert(tn_randn_like(NULL), TN_EVALUE, "randn_like");
    assert_inert(tn_randint(0, 5, TN_DIMS(2), TN_F32), TN_EDTYPE, "f32");
    assert_inert(tn_randint(5, 5, TN_DIMS(2), TN_I64), TN_EVALUE, "low is 5 and high is 5");
    assert_inert(tn_randint(0, 257, TN_DIMS(2), TN_U8), TN_EVALUE, "u8");
    assert_inert(tn_randint(0, INT64_MAX, TN_DIMS(2), TN_I64), TN_EVALUE, "2^53");
    assert_inert(tn_rand(TN_DIMS(-2), TN_F32), TN_ESHAPE, "");
    assert_true(call == tn_default_generator()->call);
}

/* A shape that cannot be is refused in the name of the call, with what is wrong with it. */
TEST(impossible_shapes) {
    tn_dims bad = TN_DIMS(-1, 3);
    static const char why[] = ": the shape is [-1, 3] (no size may be negative)";
    struct {
        const char *name;
        tn_tensor *(*make)(tn_dims dims, tn_dtype dtype);
    } makers[] = {{"zeros", tn_zeros}, {"ones", tn_ones}, {"rand", tn_rand}, {"randn", tn_randn}};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s%s", makers[i].name, why);
        assert_inert(makers[i].make(bad, TN_F32), TN_ESHAPE, text);
        snprintf(text, sizeof text, "%s: the shape has more than 8 dimensions", makers[i].name);
        assert_inert(makers[i].make(TN_DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1), TN_F32), TN_ESHAPE, text);
    }
    assert_inert(tn_full(bad, 1.0, TN_F32), TN_ESHAPE, "full: the shape is [-1, 3]");
    assert_inert(tn_randint(0, 2, bad, TN_I64), TN_ESHAPE, "randint: the shape is [-1, 3]");
}
