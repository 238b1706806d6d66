/* New and rearranged tensors, beyond what the registry's samples try: integers and bools, edge
 * cases, and random draws. */
#include <math.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* t has this shape and, in row-major order, these whole numbers. */
static void assert_holds(tn_tensor *t, tn_dims dims, const double *values) {
    assert_string_equal(tn_error_message(), "");
    if (!tn_equal(tn_cast(t, TN_F64), tn_from_data(values, dims, TN_F64))) {
        tn_fprint(stderr, t);
        fail_msg("%s", tn_shape_text(t));
    }
}
#define HOLDS(t, dims, ...) assert_holds(t, dims, (double[]){__VA_ARGS__})

static tn_tensor *make_grid(int64_t rows, int64_t columns, tn_dtype dtype) {
    tn_tensor *row = tn_arange(0, (double)(rows * columns), 1, TN_F64);
    return tn_cast(tn_reshape(row, TN_DIMS(rows, columns)), dtype);
}

TEST(linspace_includes_both_ends) {
    HOLDS(tn_linspace(-2, 2, 5, TN_F32), TN_DIMS(5), -2, -1, 0, 1, 2);
    HOLDS(tn_linspace(3, 1, 2, TN_F64), TN_DIMS(2), 3, 1);
    HOLDS(tn_linspace(3, 9, 1, TN_F64), TN_DIMS(1), 3);
    HOLDS(tn_linspace(0, 10, 4, TN_I64), TN_DIMS(4), 0, 3, 6, 10);
    assert_int_equal(tn_count(tn_linspace(3, 9, 0, TN_F64)), 0);
    tn_tensor *y = tn_linspace(0.1, 0.7, 1001, TN_F64);
    assert_true(tn_at(y, TN_DIMS(1000)) == 0.7);
    assert_float_equal(tn_at(y, TN_DIMS(500)), 0.4, 1e-15);
    assert_inert(tn_linspace(0, INFINITY, 3, TN_F32), TN_EVALUE, "finite");
    assert_inert(tn_linspace(0, 256, 3, TN_U8), TN_EVALUE, "u8");
    assert_inert(tn_linspace(0, 1, -1, TN_F32), TN_ESHAPE, "");
}

TEST(eye_of_any_sides) {
    HOLDS(tn_eye(2, 3, TN_F32), TN_DIMS(2, 3), 1, 0, 0, 0, 1, 0);
    HOLDS(tn_eye(3, 2, TN_U8), TN_DIMS(3, 2), 1, 0, 0, 1, 0, 0);
    assert_int_equal(tn_dtype_of(tn_eye(1, 1, TN_BOOL)), TN_BOOL);
    assert_int_equal(tn_count(tn_eye(0, 4, TN_F32)), 0);
    assert_inert(tn_eye(-1, 2, TN_F32), TN_ESHAPE, "-1 rows");
}

TEST(one_hot_of_any_shape) {
    tn_tensor *index = tn_from_data((int64_t[]){2, 0}, TN_DIMS(2), TN_I64);
    tn_tensor *y = tn_one_hot(index, 4);
    assert_int_equal(tn_dtype_of(y), TN_I64);
    HOLDS(y, TN_DIMS(2, 4), 0, 0, 1, 0, 1, 0, 0, 0);
    HOLDS(tn_one_hot(tn_cast(index, TN_I32), -1), TN_DIMS(2, 3), 0, 0, 1, 1, 0, 0);
    HOLDS(tn_one_hot(tn_scalar(1, TN_I64), 2), TN_DIMS(2), 0, 1);
    assert_true(
        tn_dims_equal(tn_shape(tn_one_hot(tn_zeros(TN_DIMS(0, 2), TN_I64), 5)), TN_DIMS(0, 2, 5)));
    assert_inert(tn_one_hot(index, 2), TN_EINDEX, "index 2 is outside [0, 2)");
    assert_inert(tn_one_hot(tn_neg(index), 9), TN_EINDEX, "index -2 is outside");
    assert_inert(tn_one_hot(tn_zeros(TN_DIMS(0), TN_I64), -1), TN_EVALUE, "at least 1");
    assert_inert(tn_one_hot(tn_zeros(TN_DIMS(2), TN_F32), 3), TN_EDTYPE, "f32");
}

TEST(chunks_of_tensors) {
    tn_tensor *x = make_grid(2, 6, TN_F32), *piece[6];
    assert_int_equal(tn_chunk(x, 4, 1, piece, 6), 3); /* 6 into 4: pieces of 2 */
    HOLDS(piece[2], TN_DIMS(2, 2), 4, 5, 10, 11);
    assert_true(tn_shares_storage(x, piece[0]));
    assert_null(piece[3]);
    assert_int_equal(tn_chunk(x, 3, 0, piece, 1), 2); /* the array holds fewer */
    HOLDS(piece[0], TN_DIMS(1, 6), 0, 1, 2, 3, 4, 5);
    assert_int_equal(tn_chunk(tn_zeros(TN_DIMS(0, 2), TN_F32), 3, 0, piece, 4), 3);
    assert_int_equal(tn_size(piece[2], 0), 0);
    assert_null(piece[3]);
    assert_int_equal(tn_chunk(x, 0, 1, piece, 2), 0);
    assert_error(TN_EVALUE, "chunks is 0");
    assert_true(tn_is_inert(piece[1]));
    assert_int_equal(tn_chunk(x, 2, 2, piece, 2), 0);
    assert_error(TN_EINDEX, "");
}

/* Operations that move elements do so with every dtype. */
TEST(any_dtype_is_moved) {
    for (int d = 0; d < TN_DTYPES; d++) {
        if (d == TN_BOOL) { continue; }
        tn_tensor *x = make_grid(2, 3, (tn_dtype)d);
        HOLDS(tn_flip(x, TN_DIMS(1)), TN_DIMS(2, 3), 2, 1, 0, 5, 4, 3);
        HOLDS(tn_flip(x, TN_DIMS(-1, 0)), TN_DIMS(2, 3), 5, 4, 3, 2, 1, 0);
        HOLDS(tn_roll(x, TN_DIMS(1), TN_DIMS(1)), TN_DIMS(2, 3), 2, 0, 1, 5, 3, 4);
        HOLDS(tn_roll(x, TN_DIMS(-1), TN_DIMS()), TN_DIMS(2, 3), 1, 2, 3, 4, 5, 0);
        HOLDS(tn_repeat(x, TN_DIMS(1, 2)), TN_DIMS(2, 6), 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5);
        HOLDS(tn_repeat_interleave(x, 2, 0), TN_DIMS(4, 3), 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5);
        HOLDS(tn_tril(x, 0), TN_DIMS(2, 3), 0, 0, 0, 3, 4, 0);
        HOLDS(tn_triu(x, 1), TN_DIMS(2, 3), 0, 1, 2, 0, 0, 5);
        HOLDS(tn_triu(x, INT64_MIN), TN_DIMS(2, 3), 0, 1, 2, 3, 4, 5);
        HOLDS(tn_tril(x, INT64_MIN), TN_DIMS(2, 3), 0, 0, 0, 0, 0, 0);
        assert_int_equal(tn_dtype_of(tn_tril(x, 0)), d);
    }
    tn_tensor *mask = tn_triu(tn_ones(TN_DIMS(2, 2), TN_BOOL), 1);
    HOLDS(mask, TN_DIMS(2, 2), 0, 1, 0, 0);
    HOLDS(tn_flip(mask, TN_DIMS(1)), TN_DIMS(2, 2), 1, 0, 0, 0);
    tn_dims eight = {8, {1, 1, 1, 1, 1, 1, 2, 2}}, wide = {8, {1, 1, 1, 1, 1, 1, 2, 4}};
    HOLDS(tn_repeat(make_grid(1, 2, TN_F32), eight), wide, 0, 1, 0, 1, 0, 1, 0, 1);
}

/* The first of equal smallest; INT64_MIN, which has no negative; NaN before all others. */
TEST(argmin_of_numbers) {
    HOLDS(tn_argmin(
              tn_from_data((int64_t[]){3, INT64_MIN, INT64_MAX, INT64_MIN + 1}, TN_DIMS(4), TN_I64),
              0, false),
          TN_DIMS(), 1);
    HOLDS(tn_argmin(tn_from_data((uint8_t[]){255, 1, 0, 0}, TN_DIMS(4), TN_U8), 0, true),
          TN_DIMS(1), 2);
    HOLDS(tn_argmin(tn_from_data((int8_t[]){127, -128, 0, -128}, TN_DIMS(2, 2), TN_I8), 0, false),
          TN_DIMS(2), 1, 0);
    HOLDS(tn_argmin(tn_from_data((float[]){1, -INFINITY, NAN, NAN}, TN_DIMS(4), TN_F32), 0, false),
          TN_DIMS(), 2);
    assert_inert(tn_argmin(tn_ones(TN_DIMS(2), TN_BOOL), 0, false), TN_EDTYPE, "bool");
}

TEST(kinds_of_numbers) {
    for (int d = 0; d < TN_DTYPES; d++) {
        tn_tensor *x = tn_ones(TN_DIMS(2), (tn_dtype)d);
        HOLDS(tn_isnan(x), TN_DIMS(2), 0, 0);
        HOLDS(tn_isinf(x), TN_DIMS(2), 0, 0);
        HOLDS(tn_isfinite(x), TN_DIMS(2), 1, 1);
        if (tn_dtype_is_float((tn_dtype)d)) {
            x = tn_cast(tn_from_data((double[]){NAN, -INFINITY, 1, 0}, TN_DIMS(4), TN_F64),
                        (tn_dtype)d);
            HOLDS(tn_isnan(x), TN_DIMS(4), 1, 0, 0, 0);
            HOLDS(tn_isinf(x), TN_DIMS(4), 0, 1, 0, 0);
            HOLDS(tn_isfinite(x), TN_DIMS(4), 0, 0, 1, 1);
        }
    }
    tn_tensor *a = tn_from_data((float[]){1, 100}, TN_DIMS(2), TN_F32);
    assert_true(tn_allclose(a, tn_mul_scalar(a, 1.0 + 5e-6)));
    assert_false(tn_allclose(a, tn_mul_scalar(a, 1.0 + 5e-5)));
}

TEST(random_permutations) {
    tn_seed(3);
    tn_tensor *a = tn_randperm(1000), *b = tn_randperm(1000);
    assert_int_equal(tn_default_generator()->call, 2);
    assert_false(tn_equal(a, b));
    tn_seed(3);
    assert_true(tn_equal(a, tn_randperm(1000)));
    bool seen[1000] = {false};
    int64_t value[1000];
    assert_int_equal(tn_copy_out(a, value), TN_OK);
    for (int i = 0; i < 1000; i++) {
        assert_in_range(value[i], 0, 999);
        assert_false(seen[value[i]]);
        seen[value[i]] = true;
    }
    int first[3] = {0}; /* each of three places as often as the others */
    for (int i = 0; i < 3000; i++) {
        TN_SCOPE;
        first[(int)tn_item(tn_narrow(tn_randperm(3), 0, 0, 1))]++;
    }
    for (int i = 0; i < 3; i++) {
        assert_in_range(first[i], 850, 1150);
    }
    assert_int_equal(tn_count(tn_randperm(0)), 0);
    HOLDS(tn_randperm(1), TN_DIMS(1), 0);
    assert_inert(tn_randperm(-1), TN_ESHAPE, "");
}

TEST(bernoulli_draws) {
    tn_seed(5);
    const tn_dtype floats[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (int i = 0; i < 4; i++) {
        tn_tensor *y = tn_bernoulli(tn_full(TN_DIMS(10, 2000), 0.25, floats[i]));
        assert_int_equal(tn_dtype_of(y), floats[i]);
        assert_float_equal(tn_item(tn_mean_all(tn_cast(y, TN_F64))), 0.25, 0.02);
        assert_true(tn_equal(y, tn_square(y)));
    }
    HOLDS(tn_bernoulli(tn_from_data((float[]){0, 1, 0, 1}, TN_DIMS(2, 2), TN_F32)), TN_DIMS(2, 2),
          0, 1, 0, 1);
    assert_int_equal(tn_count(tn_bernoulli(tn_zeros(TN_DIMS(0), TN_F32))), 0);
    assert_inert(tn_bernoulli(tn_full(TN_DIMS(2), 1.5, TN_F32)), TN_EVALUE,
                 "bernoulli: p[0] is 1.5 (it must be between 0 and 1)");
    assert_inert(tn_bernoulli(tn_full(TN_DIMS(2), NAN, TN_F32)), TN_EVALUE, "between 0 and 1");
    assert_inert(tn_bernoulli(tn_zeros(TN_DIMS(2), TN_I64)), TN_EDTYPE, "i64");
}
