/* Attention: against its definition written as loops, empty rows, masks, groups, the fused
 * projection and memory. */
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

/* One element of softmax(q k^T scale) v over the visible keys; 0 when there are none. mask: NULL or
 * (T, S). */
static double expected_element(tn_tensor *const *t, const tn_tensor *mask, bool causal,
                               double scale, const int64_t *at) {
    int64_t b = at[0], h = at[1], i = at[2], d = at[3];
    int64_t queries = tn_size(t[0], 2), keys = tn_size(t[1], 2), width = tn_size(t[0], 3);
    int64_t group = h / (tn_size(t[0], 1) / tn_size(t[1], 1));
    double sum = 0.0, weighted = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        if ((causal && j > i + keys - queries) || (mask && tn_at(mask, TN_DIMS(i, j)) == 0.0)) {
            continue;
        }
        double score = 0.0;
        for (int64_t c = 0; c < width; c++) {
            score += element_at(t[0], b, h, i, c) * element_at(t[1], b, group, j, c);
        }
        double p = exp(score * scale);
        sum += p;
        weighted += p * element_at(t[2], b, group, j, d);
    }
    return sum > 0.0 ? weighted / sum : 0.0;
}

static void compare_attention(tn_dims q, tn_dims k, bool masked, bool causal) {
    tn_tensor *t[3] = {tn_randn(q, TN_F64), tn_randn(k, TN_F64), tn_randn(k, TN_F64)};
    tn_tensor *mask =
        masked ? tn_gt(tn_rand(TN_DIMS(q.size[2], k.size[2]), TN_F32), tn_scalar(0.5, TN_F32))
               : NULL;
    tn_attention_options o = tn_attention_defaults();
    o.causal = causal;
    tn_tensor *y = tn_attention(t[0], t[1], t[2], mask, o);
    assert_string_equal(tn_error_message(), "");
    assert_true(tn_dims_equal(tn_shape(y), q));
    for (int64_t i = 0; i < tn_count(y); i++) {
        int64_t at[4], rest = i;
        for (int dim = 3; dim >= 0; dim--) {
            at[dim] = rest % q.size[dim];
            rest /= q.size[dim];
        }
        double want = expected_element(t, mask, causal, 1.0 / sqrt((double)q.size[3]), at);
        assert_float_equal(tn_at(y, tn_dims_from(4, at)), want, 1e-10);
    }
}

TEST(is_its_definition) {
    compare_attention(TN_DIMS(2, 2, 5, 4), TN_DIMS(2, 2, 5, 4), false, false);
    compare_attention(TN_DIMS(2, 2, 5, 4), TN_DIMS(2, 2, 5, 4), false, true);
    compare_attention(TN_DIMS(1, 2, 3, 4), TN_DIMS(1, 2, 7, 4), false, true);
    compare_attention(TN_DIMS(1, 2, 7, 4), TN_DIMS(1, 2, 3, 4), false, true);
    compare_attention(TN_DIMS(2, 6, 4, 3), TN_DIMS(2, 2, 5, 3), true, false);
    compare_attention(TN_DIMS(1, 4, 6, 3), TN_DIMS(1, 1, 6, 3), true, true);
    compare_attention(TN_DIMS(1, 1, 70, 5), TN_DIMS(1, 1, 131, 5), true, true);
}

/* Queries 0 and 1 of 4 see none of 2 keys: zeros, and no gradient into or out of them. */
TEST(a_blind_row_is_zero) {
    TN_SCOPE;
    tn_tensor *q = random_leaf(TN_DIMS(1, 1, 4, 3)), *k = random_leaf(TN_DIMS(1, 1, 2, 3)),
              *v = random_leaf(TN_DIMS(1, 1, 2, 3));
    tn_attention_options o = TN_WITH(tn_attention, .causal = true);
    tn_tensor *y = tn_attention(q, k, v, NULL, o);
    tn_backward(tn_sum_all(tn_square(y)));
    assert_int_equal(tn_error(), TN_OK);
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

static tn_values grouped_attention(void *user, tn_values in) {
    tn_attention_options o = TN_WITH(tn_attention, .causal = true);
    return (tn_values){1, {tn_attention(in.v[0], in.v[1], in.v[2], user, o)}};
}

/* The kernel's gradients, and their own gradients through the composition. */
TEST(gradients_twice) {
    TN_SCOPE;
    tn_tensor *mask = tn_gt(tn_rand(TN_DIMS(2, 1, 4, 5), TN_F32), tn_scalar(0.3, TN_F32));
    tn_values in = {3,
                    {random_leaf(TN_DIMS(2, 4, 4, 3)), random_leaf(TN_DIMS(2, 2, 5, 3)),
                     random_leaf(TN_DIMS(2, 2, 5, 3))}};
    tn_gradcheck_options o = tn_gradcheck_defaults();
    o.second = true;
    tn_gradcheck(grouped_attention, mask, in, o);
    assert_string_equal(tn_error_message(), "");
}

static tn_tensor *by_parts(tn_tensor *qkv, int64_t heads, tn_tensor *mask, tn_attention_options o) {
    tn_dims d = tn_shape(qkv);
    int64_t width = d.size[2] / 3;
    tn_tensor *part[3];
    for (int i = 0; i < 3; i++) {
        tn_tensor *third = tn_narrow(qkv, 2, i * width, width);
        part[i] = tn_transpose(
            tn_reshape(third, TN_DIMS(d.size[0], d.size[1], heads, width / heads)), 1, 2);
    }
    tn_tensor *y = tn_attention(part[0], part[1], part[2], mask, o);
    tn_tensor *rows = tn_reshape(tn_transpose(y, 1, 2), TN_DIMS(d.size[0], d.size[1], width));
    /* y's memory is (B, T, H, D), so transposing it back is a view */
    assert_true(tn_shares_storage(rows, y));
    return rows;
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

TEST(qkv_is_attention_on_its_parts) {
    TN_SCOPE;
    tn_attention_options o = TN_WITH(tn_attention, .causal = true, .scale = 0.3);
    tn_tensor *data = tn_randn(TN_DIMS(2, 5, 24), TN_F64),
              *weight = tn_randn(TN_DIMS(2, 5, 8), TN_F64);
    tn_tensor *mask = tn_gt(tn_rand(TN_DIMS(2, 1, 5, 5), TN_F32), tn_scalar(0.2, TN_F32));
    tn_tensor *a = tn_set_requires_grad(tn_copy(data), true),
              *b = tn_set_requires_grad(tn_copy(data), true);
    tn_tensor *fused = tn_attention_qkv(a, 2, mask, o), *parts = by_parts(b, 2, mask, o);
    assert_true(tn_all_close(fused, parts, 1e-12, 1e-12));
    tn_backward(tn_sum_all(tn_mul(fused, weight)));
    tn_backward(tn_sum_all(tn_mul(parts, weight)));
    assert_string_equal(tn_error_message(), "");
    assert_true(tn_all_close(tn_grad_of(a), tn_grad_of(b), 1e-12, 1e-12));
}

static tn_values fused_attention(void *user, tn_values in) {
    tn_attention_options o = tn_attention_defaults();
    return (tn_values){1, {tn_attention_qkv(in.v[0], 2, user, o)}};
}

TEST(qkv_gradients_twice) {
    TN_SCOPE;
    tn_values in = {1, {random_leaf(TN_DIMS(2, 3, 12))}};
    tn_gradcheck_options o = tn_gradcheck_defaults();
    o.second = true;
    tn_gradcheck(fused_attention, NULL, in, o);
    assert_string_equal(tn_error_message(), "");
}

/* Peak memory of forward and backward for a sequence of this length, in bytes. */
static int64_t memory_for(int64_t length) {
    TN_SCOPE;
    tn_tensor *qkv = tn_set_requires_grad(tn_randn(TN_DIMS(1, length, 24), TN_F32), true);
    tn_attention_options o = tn_attention_defaults();
    o.causal = true;
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

TEST(errors_name_both_sides) {
    TN_SCOPE;
    tn_attention_options o = tn_attention_defaults();
    tn_tensor *q = tn_zeros(TN_DIMS(1, 4, 3, 2), TN_F32),
              *k = tn_zeros(TN_DIMS(1, 3, 3, 2), TN_F32);
    tn_tensor *wide = tn_zeros(TN_DIMS(1, 4, 3, 5), TN_F32),
              *flat = tn_zeros(TN_DIMS(3, 2), TN_F32);
    tn_tensor *f64 = tn_zeros(TN_DIMS(1, 4, 3, 2), TN_F64),
              *mask = tn_zeros(TN_DIMS(2, 3, 3), TN_BOOL);
    assert_inert(tn_attention(q, k, k, NULL, o), TN_ESHAPE,
                 "attention: q is [1, 4, 3, 2] but k is [1, 3, 3, 2]");
    assert_inert(tn_attention(q, wide, wide, NULL, o), TN_ESHAPE,
                 "q is [1, 4, 3, 2] but k is [1, 4, 3, 5]");
    assert_inert(tn_attention(q, q, k, NULL, o), TN_ESHAPE,
                 "k is [1, 4, 3, 2] but v is [1, 3, 3, 2]");
    assert_inert(tn_attention(q, q, flat, NULL, o), TN_ESHAPE, "v is [3, 2]");
    assert_inert(tn_attention(q, f64, f64, NULL, o), TN_EDTYPE, "q is f32 but k is f64");
    assert_inert(tn_attention(q, q, q, mask, o), TN_ESHAPE, "mask is [2, 3, 3] but");
    assert_inert(tn_attention(q, q, q, q, o), TN_EDTYPE, "mask is f32");
    assert_inert(tn_attention(q, NULL, q, NULL, o), TN_EVALUE, "NULL");
    tn_tensor *qkv = tn_zeros(TN_DIMS(2, 3, 12), TN_F32);
    assert_inert(tn_attention_qkv(qkv, 3, NULL, o), TN_ESHAPE, "qkv is [2, 3, 12] but heads is 3");
    assert_inert(tn_attention_qkv(qkv, 0, NULL, o), TN_ESHAPE, "heads is 0");
    assert_inert(tn_attention_qkv(flat, 1, NULL, o), TN_ESHAPE, "qkv is [3, 2]");
    assert_inert(tn_attention_qkv(tn_zeros(TN_DIMS(3, 3, 12), TN_F32), 4, mask, o), TN_ESHAPE,
                 "mask is [2, 3, 3] but");
}
