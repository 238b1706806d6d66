/* Attention beyond the registry's samples: empty rows, bits, and memory. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static tn_tensor *random_leaf(tn_dims dims) {
    return tn_set_requires_grad(tn_randn(dims, TN_F64), true);
}

static double element_at(const tn_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    return tn_at(t, TN_DIMS(a, b, c, d));
}

/* Queries 0 and 1 of 4 see none of 2 keys: zeros, and no gradient into or out of them. */
TEST(a_blind_row_is_zero) {
    tn_tensor *q = random_leaf(TN_DIMS(1, 2, 4, 3)), *k = random_leaf(TN_DIMS(1, 2, 2, 3)),
              *v = random_leaf(TN_DIMS(1, 2, 2, 3));
    tn_attention_options o = TN_WITH(tn_attention, .causal = true);
    tn_tensor *y = tn_attention(q, k, v, NULL, o);
    tn_backward(tn_sum_all(tn_square(y)));
    assert_int_equal(tn_error(), TN_OK);
    /* y's memory is (B, T, H, D), so heads are joined by a view */
    assert_true(tn_is_contiguous(tn_transpose(y, 1, 2)));
    for (int64_t i = 0; i < 2; i++) {
        for (int64_t d = 0; d < 3; d++) {
            assert_float_equal(element_at(y, 0, 0, i, d), 0.0, 0.0);
            assert_float_equal(element_at(tn_grad_of(q), 0, 0, i, d), 0.0, 0.0);
        }
    }
    assert_true(fabs(element_at(tn_grad_of(q), 0, 0, 3, 0)) > 0.0);
    for (int64_t i = 0; i < 6; i++) {
        assert_true(isfinite(element_at(tn_grad_of(k), 0, 0, i / 3, i % 3)));
    }
}

static tn_tensor *leaf_rows(tn_tensor *x, int64_t first, int64_t count) {
    return tn_set_requires_grad(tn_copy(tn_narrow(tn_detach(x), 2, first, count)), true);
}

/* y and dq of a query do not depend on the other queries in the call, so ranks that share the
 * queries of a sequence (context parallelism) get the bits that one rank would. */
TEST(a_query_has_its_bits_anywhere) {
    enum { T = 156, WIDTH = 20 };
    tn_tensor *x[4];
    for (int i = 0; i < 4; i++) {
        x[i] = tn_set_requires_grad(tn_randn(TN_DIMS(1, 2, T, WIDTH), TN_F32), i < 3);
    }
    for (int block = 12; block <= T; block += block + 2) { /* 12, 26, 54, 110 */
        for (int causal = 0; causal < 2; causal++) {
            TN_SCOPE;
            tn_attention_options o = TN_WITH(tn_attention, .causal = causal);
            tn_tensor *y = tn_attention(x[0], x[1], x[2], NULL, o);
            tn_set_grad(x[0], NULL);
            tn_backward_from(&y, &x[3], 1, false);
            for (int64_t first = 0; first < T; first += block) {
                int64_t n = first + block < T ? block : T - first, seen = causal ? first + n : T;
                tn_tensor *q = leaf_rows(x[0], first, n), *dy = tn_narrow(x[3], 2, first, n);
                tn_tensor *part = tn_attention(q, tn_narrow(x[1], 2, 0, seen),
                                               tn_narrow(x[2], 2, 0, seen), NULL, o);
                tn_backward_from(&part, &dy, 1, false);
                assert_true(tn_equal(tn_detach(part), tn_narrow(tn_detach(y), 2, first, n)));
                assert_true(tn_equal(tn_grad_of(q), tn_narrow(tn_grad_of(x[0]), 2, first, n)));
            }
        }
    }
}

/* Peak memory of forward and backward for a sequence of this length, in bytes. */
static int64_t memory_for(int64_t length) {
    TN_SCOPE;
    tn_tensor *qkv = tn_set_requires_grad(tn_randn(TN_DIMS(1, length, 24), TN_F32), true);
    tn_attention_options o = TN_WITH(tn_attention, .causal = true);
    tn_memory_reset_peak();
    int64_t before = tn_memory().allocated;
    tn_backward(tn_sum_all(tn_attention_qkv(qkv, 1, NULL, o)));
    assert_int_equal(tn_error(), TN_OK);
    return tn_memory().peak - before;
}

/* The matrix of scores at 1024, T x S floats, is 4 MB: with it, twice the length would take more
 * than three times the memory. Block sizes differ between machines, so only the growth is
 * checked. */
TEST(memory_is_linear) {
    int64_t shorter = memory_for(512), longer = memory_for(1024);
    assert_true(longer < shorter / 2 * 5);
}
