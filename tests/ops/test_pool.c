/* Pooling beyond the random shapes that are compared with PyTorch: ties, NaN, other memory layouts,
 * single images; and windows larger than the input. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static tn_tensor *make_row(const float *values, int64_t n) {
    return tn_from_data(values, TN_DIMS(1, 1, n), TN_F32);
}

static double element_at(tn_tensor *t, int64_t i) {
    return tn_at(t, TN_DIMS(0, 0, i));
}

static tn_tensor *gradient_of_max(tn_tensor *x, tn_pool_options o) {
    tn_set_requires_grad(x, true);
    tn_backward(tn_sum_all(tn_max_pool1d_op(x, TN_DIMS(2), o)));
    return tn_grad_of(x);
}

TEST(largest_of_equals) {
    tn_tensor *dx =
        gradient_of_max(make_row((const float[]){3, 3, 1, 5, 5, 5}, 6), tn_pool_defaults());
    static const double wanted[] = {1, 0, 0, 1, 1, 0};
    for (int64_t i = 0; i < 6; i++) {
        assert_true(element_at(dx, i) == wanted[i]);
    }
}

TEST(nan_wins) {
    tn_tensor *x = make_row((const float[]){NAN, 2, 2, NAN, -INFINITY, -INFINITY}, 6);
    tn_tensor *y = tn_max_pool1d_op(x, TN_DIMS(2), tn_pool_defaults());
    assert_true(isnan(element_at(y, 0)) && isnan(element_at(y, 1)) &&
                element_at(y, 2) == -INFINITY);
    tn_tensor *dx = gradient_of_max(x, tn_pool_defaults());
    static const double wanted[] = {1, 0, 0, 1, 1, 0};
    for (int64_t i = 0; i < 6; i++) {
        assert_true(element_at(dx, i) == wanted[i]);
    }
}

enum { LONGEST_ROW = 200 };

/* Rows longer than what is computed at a time, with every kind of edge, in both dtypes: the largest
 * element of each window, and from the gradient which one it was. */
static void try_row(int64_t n, tn_pool_options o, tn_dtype dtype) {
    TN_SCOPE;
    int64_t stride = o.stride.size[0], padding = o.padding.size[0], dilation = o.dilation.size[0];
    tn_tensor *x = tn_cast(tn_randint(-9, 9, TN_DIMS(1, 1, n), TN_I64), dtype);
    tn_set_requires_grad(x, true);
    tn_tensor *y = tn_max_pool1d_op(x, TN_DIMS(3), o);
    tn_backward(tn_sum_all(y));
    tn_tensor *dx = tn_grad_of(x);
    int wanted[LONGEST_ROW] = {0};
    for (int64_t k = 0; k < tn_size(y, 2); k++) {
        int64_t best = -1;
        for (int64_t t = 0; t < 3; t++) {
            int64_t i = k * stride - padding + t * dilation;
            if (i >= 0 && i < n && (best < 0 || element_at(x, i) > element_at(x, best))) {
                best = i;
            }
        }
        assert_true(best >= 0 && element_at(y, k) == element_at(x, best));
        wanted[best]++;
    }
    for (int64_t i = 0; i < n; i++) {
        assert_true(element_at(dx, i) == wanted[i]);
    }
}

TEST(long_rows) {
    static const int64_t sizes[] = {7, 66, 131, LONGEST_ROW};
    for (int i = 0; i < 4 * 3 * 2 * 2; i++) {
        tn_pool_options o = tn_pool_defaults();
        o.stride = TN_DIMS(i / 4 % 3 + 1);
        o.padding = TN_DIMS(i / 12 % 2);
        o.dilation = TN_DIMS(i / 24 + 1);
        try_row(sizes[i % 4], o, TN_F32);
        try_row(sizes[i % 4], o, TN_F64);
    }
}

/* A dilated window around one element sees only padding: no element gets its gradient. */
TEST(windows_of_padding) {
    tn_pool_options o = TN_WITH(tn_pool, .padding = TN_DIMS(1), .dilation = TN_DIMS(2));
    tn_tensor *x = make_row((const float[]){7}, 1);
    assert_true(element_at(tn_max_pool1d_op(x, TN_DIMS(2), o), 0) == -INFINITY);
    assert_true(element_at(gradient_of_max(x, o), 0) == 0);
}

/* There is no second window; the indices of its elements would overflow. */
TEST(a_step_beyond_all) {
    tn_pool_options o = TN_WITH(tn_pool, .stride = TN_DIMS(INT32_MAX));
    tn_tensor *dx = gradient_of_max(make_row((const float[]){1, 2, 3}, 3), o);
    assert_true(element_at(dx, 0) == 0 && element_at(dx, 1) == 1 && element_at(dx, 2) == 0);
}

/* The same numbers, channels last in memory. */
TEST(channels_last) {
    tn_tensor *x = tn_randn(TN_DIMS(2, 5, 6, 3), TN_F32),
              *last = tn_permute(x, TN_DIMS(0, 3, 1, 2));
    tn_tensor *dense = tn_contiguous(last);
    tn_pool_options o = tn_pool_defaults();
    assert_true(
        tn_equal(tn_max_pool2d_op(last, TN_DIMS(2), o), tn_max_pool2d_op(dense, TN_DIMS(2), o)));
    assert_true(
        tn_equal(tn_avg_pool2d_op(last, TN_DIMS(2), o), tn_avg_pool2d_op(dense, TN_DIMS(2), o)));
    tn_unfold_options u = tn_unfold_defaults();
    assert_true(tn_equal(tn_unfold(last, TN_DIMS(2), u), tn_unfold(dense, TN_DIMS(2), u)));
}

TEST(single_pictures) {
    tn_tensor *x = tn_randn(TN_DIMS(1, 3, 5, 6), TN_F32), *single = tn_squeeze(x, 0);
    tn_tensor *y = tn_adaptive_avg_pool2d_op(single, TN_DIMS(2));
    assert_true(tn_equal(y, tn_squeeze(tn_adaptive_avg_pool2d_op(x, TN_DIMS(2)), 0)));
    y = tn_max_pool2d_op(single, TN_DIMS(2, 3), tn_pool_defaults());
    assert_true(tn_dims_equal(tn_shape(y), TN_DIMS(3, 2, 2)));
    tn_unfold_options u = tn_unfold_defaults();
    y = tn_fold(tn_unfold(single, TN_DIMS(1), u), TN_DIMS(5, 6), TN_DIMS(1), u);
    assert_true(tn_equal(y, single));
}

/* With ceil_mode a window may hang over on all sides, as long as it would not be moved back. */
TEST(larger_than_the_input) {
    tn_tensor *x = tn_reshape(tn_arange(0, 9, 1, TN_F32), TN_DIMS(1, 1, 3, 3));
    tn_pool_options o = tn_pool_defaults();
    assert_inert(tn_max_pool2d_op(x, TN_DIMS(5), o), TN_ESHAPE, "spans 5");
    o.ceil_mode = true;
    assert_float_equal(tn_item(tn_max_pool2d_op(x, TN_DIMS(5), o)), 8, 0);
    assert_float_equal(tn_item(tn_avg_pool2d_op(x, TN_DIMS(5), o)), 4, 0);
    o.stride = TN_DIMS(3);
    assert_float_equal(tn_item(tn_avg_pool2d_op(x, TN_DIMS(4), o)), 4, 0);
    assert_inert(tn_avg_pool2d_op(x, TN_DIMS(6), o), TN_ESHAPE, "spans 6");
    o.stride = TN_DIMS(1);
    assert_inert(tn_max_pool2d_op(x, TN_DIMS(5), o), TN_ESHAPE, "spans 5");
}
