/* Comparing whole tensors, and values and gradients where finite differences cannot check them:
 * kinks, infinities, NaN, empty tensors. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

static tn_tensor *list_of(int n, const double *values) {
    return tn_from_data(values, TN_DIMS(n), TN_F64);
}
#define LIST(...) \
    list_of((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

/* Equal; NaN equals NaN. */
static void assert_is(tn_tensor *t, tn_tensor *expected) {
    assert_int_equal(tn_error(), TN_OK);
    assert_true(tn_dims_equal(tn_shape(t), tn_shape(expected)));
    TN_SCOPE;
    tn_tensor *both_nan = tn_where(tn_ne(t, t), tn_ne(expected, expected), tn_eq(t, expected));
    if (tn_item(tn_all(both_nan)) == 0.0) {
        tn_fprint(stderr, t);
        tn_fprint(stderr, expected);
        fail_msg("the first is not the second");
    }
}

static tn_tensor *as_leaf(tn_tensor *t) {
    return tn_set_requires_grad(t, true);
}

static tn_tensor *gradient_of(tn_tensor *y, tn_tensor *x, bool create_graph) {
    tn_grad_options options = TN_WITH(tn_grad, .create_graph = create_graph, .retain_graph = true);
    tn_tensor *dy = tn_ones_like(y), *dx = NULL;
    tn_grad(&y, &dy, 1, &x, 1, &dx, options);
    assert_int_equal(tn_error(), TN_OK);
    return dx;
}

TEST(equal_tensors) {
    tn_tensor *x = tn_reshape(LIST(1, 2, 3, 4, 5, 6), TN_DIMS(2, 3));
    assert_true(tn_equal(x, x));
    assert_true(tn_equal(x, tn_t(tn_contiguous(tn_t(x)))));
    assert_false(tn_equal(x, tn_reshape(x, TN_DIMS(3, 2))));
    assert_false(tn_equal(x, tn_cast(x, TN_F32)));
    assert_false(tn_equal(x, tn_add(x, tn_reshape(LIST(0, 0, 0, 0, 0, 1e-15), TN_DIMS(2, 3)))));
    assert_true(tn_equal(LIST(0.0), LIST(-0.0)));
    assert_false(tn_equal(LIST(NAN), LIST(NAN)));
    assert_true(tn_equal(tn_zeros(TN_DIMS(0, 2), TN_F32), tn_zeros(TN_DIMS(0, 2), TN_F32)));
    assert_true(tn_equal(tn_ones(TN_DIMS(), TN_BOOL), tn_ones(TN_DIMS(), TN_BOOL)));
    assert_true(tn_grad_mode());
}

TEST(all_close) {
    tn_tensor *a = LIST(1.0, 100.0, -100.0), *b = LIST(1.005, 100.5, -100.5);
    assert_true(tn_all_close(a, b, 0.01, 0.0));
    assert_false(tn_all_close(a, b, 0.001, 0.0));
    assert_false(tn_all_close(a, b, 0.0, 0.1));
    assert_true(tn_all_close(a, b, 0.0, 0.6));
    assert_true(tn_all_close(LIST(INFINITY, -INFINITY), LIST(INFINITY, -INFINITY), 0.0, 0.0));
    assert_false(tn_all_close(LIST(INFINITY), LIST(-INFINITY), 1.0, 1.0));
    assert_false(tn_all_close(LIST(1.0), LIST(INFINITY), 1.0, 1.0));
    assert_false(tn_all_close(LIST(INFINITY), LIST(1.0), 1.0, 1.0));
    assert_false(tn_all_close(LIST(NAN), LIST(NAN), 1.0, 1.0));
    assert_true(tn_all_close(tn_cast(a, TN_BF16), a, 0.01, 0.0));
    assert_true(tn_all_close(tn_cast(a, TN_I64), a, 0.0, 0.0));
    assert_false(tn_all_close(a, LIST(1.0), 1.0, 1e9));
    int64_t live = tn_live_tensors();
    tn_all_close(a, b, 0.0, 0.0);
    tn_equal(a, b);
    assert_int_equal(tn_live_tensors(), live);
    tn_tensor *inert = tn_reshape(a, TN_DIMS(2));
    tn_error_clear();
    assert_false(tn_equal(inert, inert));
    assert_false(tn_all_close(a, inert, 1.0, 1.0));
}

/* Both forms of each gradient: the kernel, and the operations that replace it when it is
 * differentiated again. */
TEST(gradients_at_kinks) {
    for (int again = 0; again < 2; again++) {
        TN_SCOPE;
        tn_tensor *x = as_leaf(LIST(-1.0, -0.0, 0.0, 2.0, NAN));
        assert_is(gradient_of(tn_relu(x), x, again), LIST(0, 0, 0, 1, 0));
        assert_is(tn_relu(x), LIST(0, 0, 0, 2, NAN));
        assert_is(gradient_of(tn_abs(x), x, again), LIST(-1, 0, 0, 1, 0));
        assert_is(gradient_of(tn_sign(x), x, again), LIST(0, 0, 0, 0, 0));
        tn_tensor *c = as_leaf(LIST(-2.0, -1.0, 0.0, 1.0, 2.0, NAN));
        assert_is(gradient_of(tn_clamp(c, -1.0, 1.0), c, again), LIST(0, 1, 1, 1, 0, 0));
        assert_is(tn_clamp(c, -1.0, 1.0), LIST(-1, -1, 0, 1, 1, NAN));
        tn_tensor *a = as_leaf(LIST(1.0, 2.0, 3.0, NAN)), *b = as_leaf(LIST(1.0, 3.0, 2.0, 0.0));
        assert_is(gradient_of(tn_maximum(a, b), a, again), LIST(0.5, 0, 1, 1));
        assert_is(gradient_of(tn_maximum(a, b), b, again), LIST(0.5, 1, 0, 1));
        assert_is(gradient_of(tn_minimum(a, b), a, again), LIST(0.5, 1, 0, 1));
        assert_is(gradient_of(tn_minimum(a, b), b, again), LIST(0.5, 0, 1, 1));
        assert_is(tn_minimum(a, b), LIST(1, 2, 2, NAN));
        tn_tensor *m = as_leaf(LIST(3.0, 1.0, 3.0, 3.0));
        assert_is(gradient_of(tn_max(m, TN_DIMS(), false), m, again),
                  LIST(1.0 / 3, 0, 1.0 / 3, 1.0 / 3));
        assert_is(gradient_of(tn_min(m, TN_DIMS(0), true), m, again), LIST(0, 1, 0, 0));
    }
}

/* Each of these functions has a fast gradient and one made of operations: they agree up to rounding
 * over the whole range. */
TEST(gradient_kernels) {
    tn_tensor *(*const f[])(tn_tensor *) = {tn_tanh, tn_sigmoid, tn_relu,
                                            tn_silu, tn_gelu,    tn_gelu_tanh};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        TN_SCOPE;
        tn_tensor *x = as_leaf(tn_arange(-12.0, 12.0, 0.01, TN_F64)), *y = f[i](x);
        assert_true(tn_all_close(gradient_of(y, x, false), gradient_of(y, x, true), 1e-9, 1e-13));
    }
}

TEST(powers_at_edges) {
    tn_tensor *a = as_leaf(LIST(0, 0, 0, 0, 0, -2, -2, 2, 3)),
              *b = as_leaf(LIST(0, 1, 2, -1, 0.5, 2, 0, 0, 1));
    tn_tensor *y = tn_pow(a, b);
    assert_is(y, LIST(1, 0, 0, INFINITY, 0, 4, 1, 1, 3));
    assert_is(gradient_of(y, a, false), LIST(0, 1, 0, -INFINITY, INFINITY, -4, 0, 0, 1));
    assert_is(gradient_of(y, b, false),
              LIST(0, 0, 0, -INFINITY, 0, NAN, NAN, log(2.0), 3 * log(3.0)));
    tn_tensor *x = as_leaf(LIST(0, -2, 3));
    assert_is(tn_pow_scalar(x, 0.0), LIST(1, 1, 1));
    assert_is(gradient_of(tn_pow_scalar(x, 0.0), x, false), LIST(0, 0, 0));
    assert_is(gradient_of(tn_pow_scalar(x, 1.0), x, false), LIST(1, 1, 1));
    assert_is(gradient_of(tn_pow_scalar(x, 2.0), x, false), LIST(0, -4, 6));
    tn_tensor *slope = gradient_of(tn_pow_scalar(x, 2.0), x, true);
    assert_is(gradient_of(slope, x, false), LIST(2, 2, 2));
    assert_is(tn_div(LIST(1, -1, 0), LIST(0, 0, 0)), LIST(INFINITY, -INFINITY, NAN));
}

/* a ^ 0 is flat, even if 1 / a is infinite or NaN, as in PyTorch; elsewhere its slope still changes
 * with b, by 1 / a. */
TEST(zeroth_powers) {
    static const struct {
        tn_dtype dtype;
        double overflows; /* the largest number without a finite inverse */
    } cases[] = {{TN_F64, 0x1p-1024}, {TN_F32, 0x1p-128}, {TN_BF16, 0x1p-128}, {TN_F16, 0x1p-16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TN_SCOPE;
        double low = cases[i].overflows, high = 2 * low;
        tn_tensor *a = as_leaf(tn_cast(LIST(0, low, -low, high, NAN, INFINITY, 2), cases[i].dtype)),
                  *b = as_leaf(tn_zeros_like(a)), *flat = LIST(0, 0, 0, 0, 0, 0, 0);
        assert_is(tn_cast(gradient_of(tn_pow_scalar(a, 0.0), a, false), TN_F64), flat);
        tn_tensor *slope = gradient_of(tn_pow(a, b), a, true);
        assert_is(tn_cast(tn_detach(slope), TN_F64), flat);
        tn_tensor *curve = tn_cast(gradient_of(slope, a, true), TN_F64),
                  *mixed = tn_cast(gradient_of(slope, b, false), TN_F64);
        assert_is(tn_slice(curve, 0, 0, 3, 1), LIST(0, 0, 0));
        assert_is(tn_slice(mixed, 0, 6, 7, 1), LIST(0.5));
    }
}

/* Next to a large element the log of the sum is lost in the result, but not in the gradient.
 * (PyTorch loses it there, too: [1, 1].) */
TEST(logsumexp_far_from_0) {
    const tn_dtype dtypes[] = {TN_F64, TN_F32, TN_BF16};
    const double far[] = {1e16, 1e8, 1e8};
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_tensor *x = as_leaf(tn_full(TN_DIMS(2), far[i], dtypes[i]));
        tn_tensor *slope = gradient_of(tn_logsumexp(x, TN_DIMS(), false), x, true);
        assert_is(tn_cast(slope, TN_F64), LIST(0.5, 0.5));
        tn_tensor *curve = gradient_of(tn_select(slope, 0, 0), x, false);
        assert_is(tn_cast(curve, TN_F64), LIST(0.25, -0.25));
    }
}

/* Infinities in logsumexp: alone, among others, and only -inf. */
TEST(logsumexp_infinities) {
    const tn_dtype dtypes[] = {TN_F64, TN_F32, TN_BF16, TN_F16};
    for (int i = 0; i < 4; i++) {
        TN_SCOPE;
        tn_tensor *x = tn_reshape(LIST(-INFINITY, -INFINITY, INFINITY, 1.0, -INFINITY, 2.0, NAN,
                                       1.0, INFINITY, -INFINITY),
                                  TN_DIMS(5, 2));
        tn_tensor *y = tn_logsumexp(tn_cast(x, dtypes[i]), TN_DIMS(1), false);
        assert_is(tn_cast(y, TN_F64), LIST(-INFINITY, INFINITY, 2.0, NAN, INFINITY));
    }
    TN_SCOPE;
    tn_tensor *x = as_leaf(LIST(-INFINITY, 2.0, 2.0));
    assert_is(gradient_of(tn_logsumexp(x, TN_DIMS(), false), x, false), LIST(0, 0.5, 0.5));
    assert_is(tn_logsumexp(LIST(DBL_MAX, DBL_MAX), TN_DIMS(), true), LIST(DBL_MAX));
    assert_is(tn_logsumexp(tn_zeros(TN_DIMS(2, 0), TN_F64), TN_DIMS(1), false),
              LIST(-INFINITY, -INFINITY));
}

/* Equal elements have no variance, and their normalisation, its gradients included, is exact. */
TEST(constants_do_not_vary) {
    const tn_dtype dtypes[] = {TN_F64, TN_F32, TN_BF16, TN_F16};
    for (int i = 0; i < 4; i++) {
        TN_SCOPE;
        tn_tensor *x = as_leaf(tn_full(TN_DIMS(2, 257, 3), 1000.7, dtypes[i]));
        for (int k = 0; k < 3; k++) {
            tn_tensor *y = tn_var(x, k ? TN_DIMS(1, -1) : TN_DIMS(), 1, k == 1);
            assert_is(y, tn_zeros_like(y));
            assert_is(gradient_of(y, x, k == 2), tn_zeros_like(x));
        }
        tn_tensor *rows = as_leaf(tn_full(TN_DIMS(2, 257), 1000.7, dtypes[i])),
                  *b = as_leaf(tn_cast(tn_arange(0, 257, 1, TN_F32), dtypes[i]));
        tn_tensor *y = tn_layer_norm_op(rows, tn_ones_like(b), b, 1e-5);
        assert_is(y, tn_expand(b, TN_DIMS(2, 257)));
        tn_tensor *w = as_leaf(tn_ones_like(b)), *scaled = tn_layer_norm_op(rows, w, b, 1e-5);
        assert_is(gradient_of(scaled, w, false), tn_zeros_like(w));
        assert_is(gradient_of(scaled, w, true), tn_zeros_like(w));
    }
}

TEST(reductions_of_nothing) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 0), TN_F64);
    assert_is(tn_sum(x, TN_DIMS(1), false), LIST(0, 0));
    assert_is(tn_mean(x, TN_DIMS(-1), false), LIST(NAN, NAN));
    assert_is(tn_var(x, TN_DIMS(-1), 1, false), LIST(NAN, NAN));
    assert_is(tn_var(LIST(3.0), TN_DIMS(), 1, true), LIST(NAN));
    assert_is(tn_var(LIST(1, 2, 3, 6), TN_DIMS(), 2, true), LIST(7));
    assert_is(tn_var(LIST(1, 2, 3, 6), TN_DIMS(), 0, true), LIST(3.5));
    assert_float_equal(tn_item(tn_sum_all(x)), 0.0, 0.0);
    assert_float_equal(tn_item(tn_any(tn_zeros(TN_DIMS(0), TN_BOOL))), 0.0, 0.0);
    assert_float_equal(tn_item(tn_all(tn_zeros(TN_DIMS(0), TN_BOOL))), 1.0, 0.0);
    assert_int_equal(tn_count(tn_max(x, TN_DIMS(0), false)), 0);
    assert_int_equal(tn_count(tn_argmax(x, 0, true)), 0);
    tn_tensor *grid = tn_zeros(TN_DIMS(2, 3), TN_F32);
    assert_ptr_equal(tn_sum_to(grid, TN_DIMS(2, 3)), grid);
}

/* dy's gradient when the gradient of an empty x is differentiated again: 0 as in PyTorch, although
 * 1 / n is infinite. */
TEST(second_derivatives_of_nothing) {
    tn_tensor *x = as_leaf(tn_zeros(TN_DIMS(0), TN_F64)), *dx = NULL;
    tn_tensor *y[] = {tn_mean_all(x), tn_mse(x, tn_zeros_like(x), TN_MEAN),
                      tn_var(x, TN_DIMS(), 0, false), tn_var(x, TN_DIMS(0), 1, false)};
    for (int i = 0; i < 4; i++) {
        assert_true(isnan(tn_item(y[i])));
        tn_grad_options options = TN_WITH(tn_grad, .create_graph = true);
        tn_tensor *dy = as_leaf(tn_ones_like(y[i]));
        tn_grad(&y[i], &dy, 1, &x, 1, &dx, options);
        assert_is(gradient_of(tn_sum_all(dx), dy, false), tn_zeros_like(dy));
    }
}

/* A correction of n or more: infinity, or NaN where elements are equal, and PyTorch's slope. */
TEST(var_with_large_corrections) {
    tn_tensor *x = as_leaf(tn_reshape(LIST(1, 2, 2, 2), TN_DIMS(2, 2)));
    for (int i = 0; i < 3; i++) {
        const double slopes[] = {INFINITY, 1, 0.5}; /* times the sign of 2 - correction */
        double k = slopes[i];
        tn_tensor *y = tn_var(x, TN_DIMS(1), 2 + i, false);
        assert_is(y, LIST(INFINITY, NAN));
        assert_is(tn_reshape(gradient_of(y, x, false), TN_DIMS(4)),
                  i ? LIST(k, -k, 0, 0) : LIST(-k, k, NAN, NAN));
    }
}

/* A tensor without dimensions, with either dimension that may be named: as in PyTorch. */
TEST(zero_dimensions) {
    tn_tensor *x = as_leaf(tn_scalar(3.0, TN_F64)), *three = tn_scalar(3.0, TN_F64),
              *zero = tn_scalar(0.0, TN_F64), *one = tn_scalar(1.0, TN_F64);
    for (int dim = -1; dim <= 0; dim++) {
        for (int keep = 0; keep < 2; keep++) {
            tn_tensor *y[] = {tn_sum(x, TN_DIMS(dim), keep), tn_mean(x, TN_DIMS(dim), keep),
                              tn_max(x, TN_DIMS(dim), keep), tn_min(x, TN_DIMS(dim), keep),
                              tn_logsumexp(x, TN_DIMS(dim), keep)};
            for (int i = 0; i < 5; i++) {
                assert_is(y[i], three);
                assert_is(gradient_of(y[i], x, true), one);
            }
            assert_is(tn_var(x, TN_DIMS(dim), 0, keep), zero);
            assert_is(gradient_of(tn_var(x, TN_DIMS(dim), 0, keep), x, false), zero);
            assert_is(tn_var(x, TN_DIMS(dim), 1, keep), tn_scalar(NAN, TN_F64));
            assert_is(tn_cast(tn_argmax(x, dim, keep), TN_F64), zero);
        }
        assert_is(tn_softmax(x, dim), one);
        assert_is(gradient_of(tn_softmax(x, dim), x, false), zero);
        assert_is(gradient_of(tn_softmax(x, dim), x, true), zero);
        assert_is(tn_log_softmax(x, dim), zero);
        assert_is(gradient_of(tn_log_softmax(x, dim), x, false), zero);
    }
}

/* x - k and x / k equal, to the bit, those with a tensor filled with k; x (1 / k) would not. */
TEST(constants_as_tensors) {
    tn_tensor *x = tn_add_scalar(tn_mul_scalar(tn_rand(TN_DIMS(1000), TN_F32), 18.0), -9.0);
    for (int i = 1; i < 40; i++) {
        double k = (float)(i * 0.37);
        tn_tensor *filled = tn_full(TN_DIMS(1000), k, TN_F32);
        assert_true(tn_equal(tn_sub_scalar(x, k), tn_sub(x, filled)));
        assert_true(tn_equal(tn_div_scalar(x, k), tn_div(x, filled)));
    }
    assert_false(tn_equal(tn_div_scalar(x, 3.0), tn_mul_scalar(x, 1.0 / 3.0)));
    tn_tensor *least = tn_from_data((int64_t[]){-1, INT64_MIN}, TN_DIMS(2), TN_I64);
    int64_t wrapped[2];
    assert_int_equal(tn_copy_out(tn_sub_scalar(least, 0x1p62), wrapped), TN_OK);
    assert_true(wrapped[0] == -1 - (1LL << 62) && wrapped[1] == 1LL << 62); /* wraps around */
}

TEST(integer_results) {
    tn_tensor *x = tn_from_data((int32_t[]){2000000000, 2000000000, -5}, TN_DIMS(3), TN_I32),
              *sum = tn_sum_all(x);
    assert_int_equal(tn_dtype_of(sum), TN_I64);
    assert_true(tn_item(sum) == 3999999995.0);
    assert_int_equal(tn_dtype_of(tn_max(x, TN_DIMS(), false)), TN_I32);
    assert_is(tn_cast(tn_abs(x), TN_F64), LIST(2e9, 2e9, 5));
    assert_is(tn_cast(tn_clamp(x, -2.5, INFINITY), TN_F64), LIST(2e9, 2e9, -2));
    assert_is(tn_cast(tn_clamp(x, -INFINITY, 7.9), TN_F64), LIST(7, 7, -5));
    assert_is(tn_cast(tn_rsub_scalar(tn_cast(x, TN_I64), 1.0), TN_F64),
              LIST(-1999999999.0, -1999999999.0, 6));
    assert_is(tn_cast(tn_masked_fill(x, tn_lt(x, tn_scalar(0, TN_I32)), 9), TN_F64),
              LIST(2e9, 2e9, 9));
    assert_is(tn_cast(tn_argmax(x, 0, true), TN_F64), LIST(0));
}

/* All signs, as torch.fmod and torch.remainder; NaN for a divisor of 0; infinite divisors. */
TEST(remainders_of_all_signs) {
    tn_tensor *a = LIST(5.5, -5.5, 5.5, -5.5, 4, -4, 1, 1, -1, INFINITY),
              *b = LIST(2, 2, -2, -2, 2, 2, 0, INFINITY, INFINITY, 2);
    assert_is(tn_fmod(a, b), LIST(1.5, -1.5, 1.5, -1.5, 0, 0, NAN, 1, -1, NAN));
    assert_is(tn_remainder(a, b), LIST(1.5, 0.5, -0.5, -1.5, 0, 0, NAN, 1, INFINITY, NAN));
    assert_is(tn_remainder_scalar(LIST(5.5, -5.5), 2), LIST(1.5, 0.5));
    assert_is(tn_fmod_scalar(LIST(5.5, -5.5), -2), LIST(1.5, -1.5));
    assert_is(tn_remainder_scalar(LIST(5.5), 0), LIST(NAN));
    /* 0.3 / 0.1 rounds to 3, but 0.1 goes into 0.3 only twice: the remainder is just below 0.1 */
    assert_is(tn_remainder(LIST(0.3), LIST(0.1)), LIST(fmod(0.3, 0.1)));
    const tn_dtype dtypes[] = {TN_I64, TN_I32, TN_I8};
    for (int i = 0; i < 3; i++) {
        tn_tensor *n = tn_cast(LIST(7, -7, 7, -7, 5, -8), dtypes[i]),
                  *m = tn_cast(LIST(3, 3, -3, -3, 0, -1), dtypes[i]);
        assert_is(tn_cast(tn_fmod(n, m), TN_F64), LIST(1, -1, 1, -1, 5, 0));
        assert_is(tn_cast(tn_remainder(n, m), TN_F64), LIST(1, 2, -2, -1, 5, 0));
        assert_is(tn_cast(tn_remainder_scalar(n, 4), TN_F64), LIST(3, 1, 3, 1, 1, 0));
    }
    tn_tensor *least = tn_from_data((int64_t[]){INT64_MIN}, TN_DIMS(1), TN_I64);
    assert_is(tn_cast(tn_remainder_scalar(least, -1), TN_F64), LIST(0));
    assert_is(tn_cast(tn_remainder_scalar(tn_cast(LIST(250), TN_U8), 7), TN_F64), LIST(5));
}

/* b's slope is how often b goes into a, which a / b may round up. */
TEST(slopes_of_remainders) {
    for (int again = 0; again < 2; again++) {
        TN_SCOPE;
        tn_tensor *a = as_leaf(LIST(0.3, -0.3, 7, -7, -1)),
                  *b = as_leaf(LIST(0.1, 0.1, -2, -2, INFINITY));
        assert_is(gradient_of(tn_remainder(a, b), a, again), LIST(1, 1, 1, 1, 1));
        assert_is(gradient_of(tn_remainder(a, b), b, again), LIST(-2, 3, 4, -3, 1));
        assert_is(gradient_of(tn_fmod(a, b), b, again), LIST(-2, 2, 3, -3, 0));
    }
}

static tn_tensor *truth_of(tn_tensor *t) {
    assert_int_equal(tn_dtype_of(t), TN_BOOL);
    return tn_cast(t, TN_F64);
}

TEST(truths_of_comparisons) {
    tn_tensor *x = LIST(-1, 2, 3, NAN);
    assert_is(truth_of(tn_eq_scalar(x, 2)), LIST(0, 1, 0, 0));
    assert_is(truth_of(tn_ne_scalar(x, 2)), LIST(1, 0, 1, 1));
    assert_is(truth_of(tn_lt_scalar(x, 2)), LIST(1, 0, 0, 0));
    assert_is(truth_of(tn_le_scalar(x, 2)), LIST(1, 1, 0, 0));
    assert_is(truth_of(tn_gt_scalar(x, 2)), LIST(0, 0, 1, 0));
    assert_is(truth_of(tn_ge_scalar(x, 2)), LIST(0, 1, 1, 0));
    assert_is(truth_of(tn_gt_scalar(x, NAN)), LIST(0, 0, 0, 0));
    assert_is(truth_of(tn_lt_scalar(tn_cast(x, TN_F32), INFINITY)), LIST(1, 1, 1, 0));
    assert_is(truth_of(tn_eq_scalar(tn_full(TN_DIMS(1), 0.1, TN_F32), 0.1)),
              LIST(1)); /* 0.1 is rounded to f32, like x */
    assert_is(truth_of(tn_ge_scalar(tn_cast(LIST(-1, 2), TN_I8), 2)), LIST(0, 1));
    tn_tensor *no_yes = tn_cast(LIST(0, 1), TN_BOOL), *column = tn_unsqueeze(no_yes, 1);
    assert_is(truth_of(tn_eq_scalar(no_yes, 1)), LIST(0, 1));
    assert_is(truth_of(tn_flatten(tn_logical_and(no_yes, column), 0, -1)), LIST(0, 0, 0, 1));
    assert_is(truth_of(tn_flatten(tn_logical_or(no_yes, column), 0, -1)), LIST(0, 1, 1, 1));
    assert_is(truth_of(tn_flatten(tn_logical_xor(column, no_yes), 0, -1)), LIST(0, 1, 1, 0));
    assert_is(truth_of(tn_logical_not(no_yes)), LIST(1, 0));
}

/* An accuracy in one line; counts that do not fit in 8 bits. */
TEST(sums_of_truths) {
    tn_tensor *scores = tn_reshape(LIST(1, 2, 4, 3, 0, 9), TN_DIMS(3, 2)),
              *labels = tn_from_data((int64_t[]){1, 0, 0}, TN_DIMS(3), TN_I64);
    tn_tensor *right = tn_eq(tn_argmax(scores, -1, false), labels), *share = tn_mean_all(right);
    assert_int_equal(tn_dtype_of(share), TN_F32);
    assert_true(tn_item(share) == (float)(2.0 / 3.0));
    assert_int_equal(tn_dtype_of(tn_sum_all(right)), TN_I64);
    tn_tensor *many = tn_ones(TN_DIMS(2, 1000), TN_BOOL);
    assert_is(tn_cast(tn_sum(many, TN_DIMS(1), false), TN_F64), LIST(1000, 1000));
    assert_is(tn_cast(tn_mean(many, TN_DIMS(1), true), TN_F64), tn_ones(TN_DIMS(2, 1), TN_F64));
    assert_true(isnan(tn_item(tn_mean_all(tn_zeros(TN_DIMS(0), TN_BOOL)))));
}

TEST(registry_by_name) {
    for (int i = 0; i < tn_op_count(); i++) {
        assert_ptr_equal(tn_op_named(tn_op_at(i)->name), tn_op_at(i));
    }
    assert_null(tn_op_at(-1));
    assert_null(tn_op_at(tn_op_count()));
    assert_null(tn_op_named("none"));
}
