/* Sorting, counting, cumulative sums, scattering and padding, beyond the registry's samples:
 * integers, ties, results whose size depends on the elements, random draws, and what draws refuse.
 */
#include <math.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* t has this shape and, in row-major order, these numbers; NaN equals NaN. */
static void assert_holds(tn_tensor *t, tn_dims dims, const double *values) {
    assert_string_equal(tn_error_message(), "");
    double got[64];
    assert_true(tn_dims_equal(tn_shape(t), dims));
    assert_int_equal(tn_copy_out(tn_cast(tn_detach(t), TN_F64), got), TN_OK);
    for (int64_t i = 0; i < tn_count(t); i++) {
        if (got[i] != values[i] && !(isnan(got[i]) && isnan(values[i]))) {
            tn_fprint(stderr, t);
            fail_msg("element %d is %g, not %g", (int)i, got[i], values[i]);
        }
    }
}
#define HOLDS(t, dims, ...) assert_holds(t, dims, (double[]){__VA_ARGS__})

static tn_tensor *vector_of(const double *values, int64_t n, tn_dtype dtype) {
    return tn_cast(tn_from_data(values, TN_DIMS(n), TN_F64), dtype);
}
#define VECTOR(dtype, ...) \
    vector_of((double[]){__VA_ARGS__}, sizeof((double[]){__VA_ARGS__}) / sizeof(double), dtype)

TEST(sorts_every_dtype) {
    for (int d = 0; d < TN_DTYPES; d++) {
        tn_tensor *index;
        if (d == TN_BOOL) {
            HOLDS(tn_sort(VECTOR(TN_BOOL, 1, 0, 1, 0), 0, false, &index), TN_DIMS(4), 0, 0, 1, 1);
            HOLDS(index, TN_DIMS(4), 1, 3, 0, 2);
            continue;
        }
        tn_tensor *x = VECTOR((tn_dtype)d, 3, 100, 0, 3, 7, 100);
        HOLDS(tn_sort(x, 0, false, &index), TN_DIMS(6), 0, 3, 3, 7, 100, 100);
        HOLDS(index, TN_DIMS(6), 2, 0, 3, 4, 1, 5); /* equal elements keep their order … */
        HOLDS(tn_argsort(x, -1, true), TN_DIMS(6), 1, 5, 4, 0, 3, 2); /* … descending too */
        HOLDS(tn_topk(x, 3, 0, true, &index), TN_DIMS(3), 100, 100, 7);
        HOLDS(index, TN_DIMS(3), 1, 5, 4);
        HOLDS(tn_topk(x, 2, 0, false, NULL), TN_DIMS(2), 0, 3);
    }
    const int64_t far[] = {INT64_MAX, -1, INT64_MIN, 0};
    HOLDS(tn_argsort(tn_from_data(far, TN_DIMS(4), TN_I64), 0, false), TN_DIMS(4), 2, 1, 3, 0);
    HOLDS(tn_sort(VECTOR(TN_F32, NAN, 1, -INFINITY, INFINITY, NAN), 0, false, NULL), TN_DIMS(5),
          -INFINITY, 1, INFINITY, NAN, NAN);
}

/* Long rows are sorted by digits: equal elements keep their order, for any number of threads. */
TEST(long_lines_are_stable) {
    enum { N = 5000, LINES = 7 };
    tn_tensor *x = tn_cast(tn_randint(-40, 40, TN_DIMS(LINES, N), TN_I64), TN_F32), *index;
    tn_tensor *sorted = tn_sort(x, 1, true, &index);
    static float value[LINES * N];
    static int64_t place[LINES * N];
    tn_copy_out(sorted, value);
    tn_copy_out(index, place);
    for (int i = 1; i < LINES * N; i++) {
        if (i % N) {
            assert_true(value[i - 1] > value[i] ||
                        (value[i - 1] == value[i] && place[i - 1] < place[i]));
        }
    }
    int threads = tn_threads();
    tn_set_threads(1);
    assert_true(tn_equal(index, tn_argsort(x, 1, true)));
    tn_set_threads(threads);
    tn_tensor *best;
    tn_topk(x, 300, 1, true, &best);
    assert_true(tn_equal(best, tn_contiguous(tn_narrow(index, 1, 0, 300))));
    assert_true(tn_equal(tn_t(tn_argsort(tn_t(x), 0, true)), index));
}

static tn_values sorted_squares(void *user, tn_values in) {
    tn_tensor *sorted = tn_sort(in.v[0], 1, false, NULL);
    return (tn_values){2, {tn_square(sorted), tn_square(tn_topk(in.v[0], 2, 0, true, NULL))}};
}

TEST(values_have_gradients) {
    tn_values in = {1, {tn_set_requires_grad(tn_randn(TN_DIMS(3, 4), TN_F64), true)}};
    tn_gradcheck_options o = TN_WITH(tn_gradcheck, .second = true);
    tn_gradcheck(sorted_squares, NULL, in, o);
}

TEST(sorting_refused) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32), *index;
    assert_inert(tn_sort(x, 2, false, &index), TN_EINDEX, "");
    assert_true(tn_is_inert(index));
}

TEST(places_that_are_not_zero) {
    tn_tensor *x = tn_reshape(VECTOR(TN_F32, 0, 2, -0.0, NAN, 0, 1), TN_DIMS(2, 3));
    HOLDS(tn_nonzero(x), TN_DIMS(3, 2), 0, 1, 1, 0, 1, 2);
    HOLDS(tn_nonzero(tn_t(x)), TN_DIMS(3, 2), 0, 1, 1, 0, 2, 1);
    HOLDS(tn_nonzero(VECTOR(TN_U8, 0, 7, 7)), TN_DIMS(2, 1), 1, 2);
    assert_true(tn_dims_equal(tn_shape(tn_nonzero(tn_zeros(TN_DIMS(3), TN_BOOL))), TN_DIMS(0, 1)));
    assert_true(tn_dims_equal(tn_shape(tn_nonzero(tn_scalar(2, TN_F32))), TN_DIMS(1, 0)));
    assert_true(tn_dims_equal(tn_shape(tn_nonzero(tn_ones(TN_DIMS(0, 4), TN_F32))), TN_DIMS(0, 2)));
    tn_tensor *many = tn_gt(tn_randn(TN_DIMS(7, 300, 3), TN_F32), tn_scalar(0.5, TN_F32));
    assert_true(tn_equal(tn_to(tn_nonzero(many), tn_cpu()), tn_nonzero(tn_to(many, tn_cpu()))));
    assert_true(tn_equal(tn_nonzero(tn_scalar(NAN, TN_F32)), tn_nonzero(tn_scalar(2, TN_F32))));
}

TEST(different_elements) {
    tn_tensor *inverse, *counts;
    tn_tensor *x = tn_reshape(VECTOR(TN_I64, 5, -2, 5, 9, -2, 5), TN_DIMS(2, 3));
    HOLDS(tn_unique(x, &inverse, &counts), TN_DIMS(3), -2, 5, 9);
    HOLDS(inverse, TN_DIMS(2, 3), 1, 0, 1, 2, 0, 1);
    HOLDS(counts, TN_DIMS(3), 2, 3, 1);
    HOLDS(tn_unique(VECTOR(TN_F32, NAN, 1, NAN, 1), NULL, &counts), TN_DIMS(3), 1, NAN, NAN);
    HOLDS(counts, TN_DIMS(3), 2, 1, 1);
    HOLDS(tn_unique(VECTOR(TN_BOOL, 1, 1), &inverse, NULL), TN_DIMS(1), 1);
    HOLDS(inverse, TN_DIMS(2), 0, 0);
    HOLDS(tn_unique(tn_scalar(4, TN_F32), &inverse, &counts), TN_DIMS(1), 4);
    HOLDS(inverse, TN_DIMS(), 0);
    tn_tensor *none = tn_unique(tn_zeros(TN_DIMS(0, 2), TN_F32), &inverse, &counts);
    assert_true(tn_dims_equal(tn_shape(none), TN_DIMS(0)));
    assert_true(tn_dims_equal(tn_shape(inverse), TN_DIMS(0, 2)));
    assert_true(tn_dims_equal(tn_shape(counts), TN_DIMS(0)));
}

TEST(sums_and_products_along) {
    tn_tensor *x = VECTOR(TN_U8, 200, 100, 2);
    assert_int_equal(tn_dtype_of(tn_cumsum(x, 0)), TN_I64);
    HOLDS(tn_cumsum(x, 0), TN_DIMS(3), 200, 300, 302);
    HOLDS(tn_cumprod(x, 0), TN_DIMS(3), 200, 20000, 40000);
    HOLDS(tn_prod(x, TN_DIMS(), false), TN_DIMS(), 40000);
    HOLDS(tn_cumsum(VECTOR(TN_BOOL, 1, 0, 1), 0), TN_DIMS(3), 1, 1, 2);
    HOLDS(tn_prod(tn_zeros(TN_DIMS(2, 0), TN_I32), TN_DIMS(1), false), TN_DIMS(2), 1, 1);
    HOLDS(tn_cumsum(VECTOR(TN_F32, 1, INFINITY, 2, -INFINITY), 0), TN_DIMS(4), 1, INFINITY,
          INFINITY, NAN);
    HOLDS(tn_isnan(tn_logcumsumexp(VECTOR(TN_F32, 1, NAN, INFINITY, 2), 0)), TN_DIMS(4), 0, 1, 1,
          1);
    tn_tensor *many = tn_full(TN_DIMS(1 << 20), 0.1, TN_F32); /* the running sum is f64 */
    tn_tensor *last = tn_select(tn_cumsum(many, 0), 0, (1 << 20) - 1);
    assert_float_equal(tn_item(last), 0.1 * (1 << 20), 0.01);
}

TEST(adds_where_indices_say) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(3, 2), TN_F64), true);
    tn_tensor *index = tn_reshape(VECTOR(TN_I64, 2, 0, 2, 1), TN_DIMS(2, 2));
    tn_tensor *src = tn_set_requires_grad(
        tn_copy(tn_reshape(VECTOR(TN_F64, 1, 2, 3, 4, 5, 6), TN_DIMS(2, 3))), true);
    tn_tensor *y = tn_scatter_add(x, 0, index, src); /* the part of src that index covers */
    HOLDS(y, TN_DIMS(3, 2), 1, 3, 1, 6, 6, 1);
    tn_backward(tn_sum_all(tn_square(y)));
    HOLDS(tn_grad_of(x), TN_DIMS(3, 2), 2, 6, 2, 12, 12, 2);
    HOLDS(tn_grad_of(src), TN_DIMS(2, 3), 12, 6, 0, 12, 12, 0);
    assert_inert(tn_scatter_add(tn_detach(x), 0, tn_add_scalar(index, 1), tn_detach(src)),
                 TN_EINDEX, "index 3");
    assert_inert(tn_scatter_add(tn_detach(x), 0, tn_zeros(TN_DIMS(3, 2), TN_I64), tn_detach(src)),
                 TN_ESHAPE, "index is [3, 2]");
}

static tn_values put_both(void *user, tn_values in) {
    tn_tensor *const *index = user;
    tn_tensor *x = tn_square(in.v[0]), *values = tn_square(in.v[1]);
    return (tn_values){2,
                       {tn_square(tn_index_put(x, index, 2, values, true)),
                        tn_square(tn_index_put(x, index, 2, values, false))}};
}

TEST(puts_where_indices_say) {
    tn_tensor *row = VECTOR(TN_I64, 0, 2, 0), *column = VECTOR(TN_I32, 1, 0, 1);
    tn_tensor *both[2] = {row, column}, *values = VECTOR(TN_F64, 5, 6, 7);
    tn_tensor *x = tn_zeros(TN_DIMS(3, 2), TN_F64);
    HOLDS(tn_index_put(x, both, 2, values, true), TN_DIMS(3, 2), 0, 12, 0, 0, 6, 0);
    HOLDS(tn_index_put(x, both, 2, values, false), TN_DIMS(3, 2), 0, 7, 0, 0, 6, 0);
    HOLDS(tn_index_put(x, both, 1, tn_scalar(9, TN_F64), false), TN_DIMS(3, 2), 9, 9, 0, 0, 9, 9);
    both[1] = tn_unsqueeze(column, 1); /* they broadcast: every row with every column */
    HOLDS(tn_index_put(x, both, 2, tn_scalar(1, TN_F64), true), TN_DIMS(3, 2), 2 * 1, 4, 0, 0, 1,
          2);
    HOLDS(tn_index_put(tn_zeros(TN_DIMS(3), TN_BOOL), &row, 1, tn_scalar(1, TN_BOOL), false),
          TN_DIMS(3), 1, 0, 1);
    both[1] = column;
    tn_values in = {2,
                    {tn_set_requires_grad(tn_randn(TN_DIMS(3, 2, 2), TN_F64), true),
                     tn_set_requires_grad(tn_randn(TN_DIMS(3, 1), TN_F64), true)}};
    tn_gradcheck_options o = TN_WITH(tn_gradcheck, .second = true);
    tn_gradcheck(put_both, both, in, o);
    assert_string_equal(tn_error_message(), "");
    both[1] = VECTOR(TN_I64, 0, 2, 0);
    assert_inert(tn_index_put(x, both, 2, values, true), TN_EINDEX, "index 2 is outside [0, 2)");
    both[1] = VECTOR(TN_I64, 0, 1);
    assert_inert(tn_index_put(x, both, 2, values, true), TN_ESHAPE, "index 1 is [2]");
    assert_inert(tn_index_put(x, both, 3, values, true), TN_EVALUE, "3 indices");
    assert_inert(tn_index_put(x, &values, 1, values, true), TN_EDTYPE, "index 0 is f64");
}

TEST(pads_of_every_mode) {
    tn_tensor *x = VECTOR(TN_I32, 1, 2, 3);
    tn_dims pads = TN_DIMS(2, 1);
    HOLDS(tn_pad(x, pads, TN_PAD_CONSTANT, -7), TN_DIMS(6), -7, -7, 1, 2, 3, -7);
    HOLDS(tn_pad(x, pads, TN_PAD_REFLECT, 0), TN_DIMS(6), 3, 2, 1, 2, 3, 2);
    HOLDS(tn_pad(x, pads, TN_PAD_REPLICATE, 0), TN_DIMS(6), 1, 1, 1, 2, 3, 3);
    HOLDS(tn_pad(x, pads, TN_PAD_CIRCULAR, 0), TN_DIMS(6), 2, 3, 1, 2, 3, 1);
    HOLDS(tn_pad(x, TN_DIMS(-1, 1), TN_PAD_REFLECT, 0), TN_DIMS(3), 2, 3, 2);
    HOLDS(tn_pad(x, TN_DIMS(-1, 1), TN_PAD_CIRCULAR, 0), TN_DIMS(3), 2, 3, 2);
    HOLDS(tn_pad(x, TN_DIMS(2, -1), TN_PAD_CIRCULAR, 0), TN_DIMS(4), 1, 2, 1, 2);
    HOLDS(tn_pad(x, TN_DIMS(-3, 0), TN_PAD_CONSTANT, 0), TN_DIMS(0), 0);
}

/* How often each of n indices was drawn. */
static void count_draws(tn_tensor *drawn, int *times, int n) {
    static int64_t place[40000];
    assert_string_equal(tn_error_message(), "");
    assert_true(tn_count(drawn) <= 40000);
    tn_copy_out(drawn, place);
    for (int i = 0; i < n; i++) {
        times[i] = 0;
    }
    for (int64_t i = 0; i < tn_count(drawn); i++) {
        assert_in_range(place[i], 0, n - 1);
        times[place[i]]++;
    }
}

TEST(draws_by_weight) {
    int times[4];
    tn_seed(9);
    tn_tensor *weights = VECTOR(TN_F32, 1, 0, 2, 5);
    tn_tensor *drawn = tn_multinomial(weights, 8000, true);
    assert_int_equal(tn_default_generator()->call, 1);
    assert_int_equal(tn_dtype_of(drawn), TN_I64);
    count_draws(drawn, times, 4);
    assert_in_range(times[0], 850, 1150);
    assert_int_equal(times[1], 0);
    assert_in_range(times[2], 1800, 2200);
    tn_seed(9);
    assert_true(tn_equal(drawn, tn_multinomial(weights, 8000, true)));
    /* Without replacement a row has no index twice; its first follows the weights. */
    tn_tensor *rows = tn_expand(weights, TN_DIMS(8000, 4));
    drawn = tn_multinomial(rows, 3, false);
    assert_true(tn_dims_equal(tn_shape(drawn), TN_DIMS(8000, 3)));
    count_draws(drawn, times, 4);
    assert_int_equal(times[0], 8000);
    assert_int_equal(times[1], 0);
    count_draws(tn_narrow(drawn, 1, 0, 1), times, 4);
    assert_in_range(times[0], 850, 1150);
    assert_in_range(times[2], 1800, 2200);
    assert_inert(tn_multinomial(weights, 4, false), TN_EVALUE, "fewer weights above 0");
    assert_inert(tn_multinomial(tn_neg(weights), 1, true), TN_EVALUE, "not negative");
    assert_inert(tn_multinomial(tn_zeros(TN_DIMS(3), TN_F32), 1, true), TN_EVALUE, "above 0");
    assert_inert(tn_multinomial(VECTOR(TN_F32, 1, NAN), 1, true), TN_EVALUE, "finite");
    assert_inert(tn_multinomial(tn_scalar(1, TN_F32), 1, true), TN_ESHAPE, "rows of floats");
}
