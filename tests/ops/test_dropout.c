/* Dropout: how much is kept, the same mask in backward and for the same key, and edge cases. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

TEST(keeps_its_share) {
    enum { N = 40000 };
    static float y[N];
    assert_int_equal(tn_copy_out(tn_dropout_op(tn_ones(TN_DIMS(N), TN_F32), 0.25), y), TN_OK);
    int kept = 0;
    for (int i = 0; i < N; i++) {
        assert_true(y[i] == 0.0f || fabsf(y[i] - 4.0f / 3.0f) < 1e-6f);
        kept += y[i] != 0.0f;
    }
    assert_true(abs(kept - 3 * N / 4) < 5 * 87); /* 5 standard deviations */
}

TEST(backward_has_the_same_mask) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(9, 31), TN_F64), true);
    tn_tensor *y = tn_dropout_op(x, 0.5);
    tn_backward(tn_sum_all(y));
    assert_int_equal(tn_error(), TN_OK);
    assert_true(tn_equal(tn_grad_of(x), tn_detach(y)));
}

TEST(each_call_draws_anew_and_a_seed_repeats) {
    tn_tensor *x = tn_ones(TN_DIMS(100), TN_F32);
    tn_tensor *a = tn_dropout_op(x, 0.5);
    assert_true(tn_default_generator()->call == 1);
    tn_tensor *b = tn_dropout_op(x, 0.5);
    assert_false(tn_equal(a, b));
    tn_seed(1);
    assert_true(tn_equal(a, tn_dropout_op(x, 0.5)));
    tn_seed(1);
    tn_default_generator()->stream = 9;
    assert_false(tn_equal(a, tn_dropout_op(x, 0.5)));
    tn_default_generator()->stream = 0;
}

/* An element's position counts in the shape, not in memory, which changes no bit. */
TEST(strides_do_not_matter) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (int k = 0; k < 4; k++) {
        tn_tensor *x = tn_randn(TN_DIMS(33, 70), dtypes[k]);
        tn_seed(2);
        tn_tensor *turned = tn_dropout_op(tn_t(x), 0.1);
        tn_seed(2);
        assert_true(tn_equal(turned, tn_dropout_op(tn_copy(tn_t(x)), 0.1)));
    }
}

TEST(ends_of_the_range) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(50), TN_F32), true);
    assert_ptr_equal(tn_dropout_op(x, 0.0), x);
    assert_true(tn_default_generator()->call == 0);
    tn_tensor *none = tn_dropout_op(x, 1.0);
    assert_true(tn_equal(tn_detach(none), tn_zeros(TN_DIMS(50), TN_F32)));
    tn_backward(tn_sum_all(none));
    assert_true(tn_equal(tn_grad_of(x), tn_zeros(TN_DIMS(50), TN_F32)));
    const double outside[] = {-0.1, 1.1, NAN};
    for (int i = 0; i < 3; i++) {
        assert_inert(tn_dropout_op(x, outside[i]), TN_EVALUE, "dropout: p is");
    }
    assert_true(tn_is_inert(tn_dropout_op(tn_ones(TN_DIMS(3), TN_I64), 0.5)));
    assert_int_equal(tn_error(), TN_EDTYPE);
    assert_true(tn_is_inert(tn_dropout_op(tn_add(x, NULL), 0.0)));
    assert_int_equal(tn_error(), TN_EDTYPE);
    tn_error_clear();
    assert_inert(tn_dropout_op(NULL, 0.0), TN_EVALUE, "the tensor is NULL");
}
