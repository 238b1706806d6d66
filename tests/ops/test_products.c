/* Products: layouts that are not copied, what is saved, what is never made. */
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* The same product, written out: a (…, m, k, 1) times b (…, 1, k, n), summed over k. */
static tn_tensor *multiplied_out(tn_tensor *a, tn_tensor *b) {
    int na = tn_ndim(a), nb = tn_ndim(b);
    tn_tensor *all = tn_mul(tn_unsqueeze(a, na), tn_unsqueeze(b, nb - 2));
    return tn_sum(all, TN_DIMS(-2), false);
}

static void assert_same(tn_tensor *a, tn_tensor *b) {
    tn_tensor *y = tn_matmul(a, b);
    assert_string_equal(tn_error_message(), "");
    assert_true(tn_all_close(y, multiplied_out(a, b), 1e-12, 1e-12));
}

/* Batches that merge into rows, that stay batches, and whose matrices are multiplied one by one. */
TEST(stacks_of_every_kind) {
    tn_tensor *a = tn_randn(TN_DIMS(3, 4, 5, 6), TN_F64),
              *b = tn_randn(TN_DIMS(3, 4, 6, 2), TN_F64);
    tn_tensor *w = tn_randn(TN_DIMS(6, 2), TN_F64);
    assert_same(a, b);
    assert_same(a, w);
    assert_same(tn_transpose(a, 0, 1), w);
    assert_same(tn_transpose(a, 1, 2), w);
    assert_same(tn_transpose(a, 0, 1), tn_transpose(b, 0, 1));
    assert_same(a, tn_narrow(b, 0, 1, 1));
    assert_same(tn_narrow(a, 1, 2, 1), b);
    assert_same(tn_narrow(a, 0, 1, 1), tn_narrow(b, 1, 1, 1));
    assert_same(tn_narrow(a, 2, 3, 1), w);
    assert_same(tn_transpose(tn_narrow(a, 2, 3, 1), 0, 1), w);
    assert_same(tn_slice(a, 2, 0, 5, 2), tn_slice(b, 3, 1, 2, 1));
    assert_same(tn_t(b), tn_t(a));
    tn_tensor *deep = tn_permute(tn_randn(TN_DIMS(4, 3, 2, 2, 5), TN_F64), TN_DIMS(2, 1, 0, 3, 4));
    assert_same(deep,
                tn_randn(TN_DIMS(2, 3, 4, 5, 2), TN_F64)); /* three dimensions that do not merge */
    assert_same(tn_expand(w, TN_DIMS(4, 6, 2)), tn_t(tn_expand(w, TN_DIMS(3, 1, 6, 2))));
}

/* db of a batch times one matrix: the (batch, k, n) products are never made. 4 MB here. */
TEST(a_shared_matrix_needs_no_stack_of_gradients) {
    tn_tensor *a = tn_randn(TN_DIMS(64, 2, 128), TN_F32);
    tn_tensor *b = tn_set_requires_grad(tn_randn(TN_DIMS(128, 128), TN_F32), true);
    tn_tensor *loss = tn_sum_all(tn_matmul(a, b));
    tn_device_memory_reset_peak(tn_default_device());
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    assert_int_equal(tn_backward(loss), TN_OK);
    assert_true(tn_device_memory(tn_default_device()).peak - before < 1 << 20);
    tn_tensor *column = tn_sum(tn_reshape(a, TN_DIMS(128, 128)), TN_DIMS(0), false);
    assert_true(tn_all_close(tn_select(tn_grad_of(b), 1, 5), column, 1e-4, 1e-4));
}

/* x is kept only for the weight's gradient. */
TEST(frozen_weights_keep_no_input) {
    for (int frozen = 0; frozen < 2; frozen++) {
        tn_tensor *weight = tn_set_requires_grad(tn_randn(TN_DIMS(8, 4096), TN_F32), !frozen);
        tn_tensor *bias = tn_set_requires_grad(tn_zeros(TN_DIMS(8), TN_F32), true);
        int64_t before = tn_device_memory(tn_default_device()).allocated;
        tn_tensor *x = tn_randn(TN_DIMS(64, 4096), TN_F32), *y = tn_linear_op(x, weight, bias);
        tn_drop(x);
        int64_t held = tn_device_memory(tn_default_device()).allocated - before;
        assert_true(frozen ? held < 64 * 4096 : held >= 64 * 4096 * 4);
        assert_int_equal(tn_backward(tn_sum_all(y)), TN_OK);
        assert_float_equal(tn_at(tn_grad_of(bias), TN_DIMS(3)), 64.0, 0.0);
    }
}
