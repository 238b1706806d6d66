/* Changes in place: results, when they are allowed, overlapping operands, and the version that
 * backward checks. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* x's elements, in row-major order. */
static void assert_holds(tn_tensor *x, int n, const double *values) {
    assert_int_equal(tn_error(), TN_OK);
    assert_int_equal(tn_count(x), n);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *flat = tn_reshape(tn_cast(x, TN_F64), TN_DIMS(-1));
    for (int64_t i = 0; i < n; i++) {
        double value = tn_at(flat, TN_DIMS(i));
        if (!(value == values[i] || (isnan(value) && isnan(values[i])))) {
            fail_msg("element %d is %g, not %g", (int)i, value, values[i]);
        }
    }
}
#define HOLDS(x, ...)                                                        \
    assert_holds(x, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), \
                 (double[]){__VA_ARGS__})

static tn_tensor *count_to(int64_t n, tn_dtype dtype) {
    return tn_arange(0, (double)n, 1, dtype);
}

TEST(results_in_place) {
    const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64, TN_I32, TN_U8, TN_I8};
    for (int i = 0; i < 8; i++) {
        TN_SCOPE;
        tn_dtype d = dtypes[i];
        tn_tensor *x = count_to(4, d), *y = tn_add_scalar(count_to(4, d), 1.0);
        assert_ptr_equal(tn_add_(x, y), x);
        HOLDS(x, 1, 3, 5, 7);
        HOLDS(tn_sub_(x, tn_ones(TN_DIMS(1), d)), 0, 2, 4, 6);
        HOLDS(tn_mul_(x, y), 0, 4, 12, 24);
        HOLDS(tn_add_scaled_(x, y, 2.0), 2, 8, 18, 32);
        HOLDS(tn_add_scaled_(x, y, 1.0), 3, 10, 21, 36);
        HOLDS(tn_add_scalar_(x, 4.0), 7, 14, 25, 40);
        HOLDS(tn_mul_scalar_(x, 2.0), 14, 28, 50, 80);
        HOLDS(tn_clamp_(x, 20.0, 60.0), 20, 28, 50, 60);
        HOLDS(tn_clamp_(x, -INFINITY, 50.0), 20, 28, 50, 50);
        HOLDS(tn_fill_(x, 3.0), 3, 3, 3, 3);
        HOLDS(tn_zero_(x), 0, 0, 0, 0);
        HOLDS(tn_copy_(x, y), 1, 2, 3, 4);
        if (tn_dtype_is_float(d)) {
            HOLDS(tn_div_(x, tn_full(TN_DIMS(), 2.0, d)), 0.5, 1, 1.5, 2);
        } else {
            assert_inert(tn_div_(x, y), TN_EDTYPE, "floating point is needed");
        }
    }
}

/* copy_ converts; the other operands must have x's dtype. */
TEST(dtypes_must_match) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 2), TN_F32);
    HOLDS(tn_copy_(x, count_to(2, TN_I64)), 0, 1, 0, 1);
    HOLDS(tn_copy_(tn_zeros(TN_DIMS(3), TN_BOOL), count_to(3, TN_F64)), 0, 1, 1);
    assert_inert(tn_add_(x, count_to(2, TN_F64)), TN_EDTYPE, "add_: x is f32 but y is f64");
    assert_inert(tn_mul_scalar_(tn_ones(TN_DIMS(2), TN_BOOL), 2.0), TN_EDTYPE, "bool");
    assert_inert(tn_add_(tn_ones(TN_DIMS(2), TN_BOOL), tn_ones(TN_DIMS(2), TN_BOOL)), TN_EDTYPE,
                 "bool");
    assert_inert(tn_add_scalar_(count_to(2, TN_I64), 0.5), TN_EVALUE, "k is 0.5");
    assert_inert(tn_fill_(count_to(2, TN_U8), 300.0), TN_EVALUE, "300");
    assert_inert(tn_clamp_(x, NAN, 1.0), TN_EVALUE, "low is");
    HOLDS(x, 0, 1, 0, 1);
}

TEST(shapes_broadcast) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32);
    HOLDS(tn_add_(x, count_to(3, TN_F32)), 0, 1, 2, 0, 1, 2);
    HOLDS(tn_add_(tn_t(x), tn_reshape(count_to(3, TN_F32), TN_DIMS(3, 1))), 0, 0, 2, 2, 4, 4);
    HOLDS(x, 0, 2, 4, 0, 2, 4);
    tn_fill_(tn_narrow(x, 1, 1, 2), 7.0);
    tn_zero_(tn_select(x, 0, 1));
    HOLDS(x, 0, 7, 7, 0, 0, 0);
    assert_inert(tn_add_(x, tn_zeros(TN_DIMS(2), TN_F32)), TN_ESHAPE,
                 "add_: x is [2, 3] but y is [2]");
    assert_inert(tn_add_(count_to(3, TN_F32), x), TN_ESHAPE, "x is [3] but y is [2, 3]");
    assert_inert(tn_copy_(x, tn_zeros(TN_DIMS(1, 2, 3), TN_F32)), TN_ESHAPE, "copy_");
    assert_inert(tn_zero_(tn_expand(tn_scalar(1, TN_F32), TN_DIMS(2))), TN_ESHAPE, "repeats");
    tn_zero_(tn_zeros(TN_DIMS(0, 3), TN_F32));
    tn_add_(tn_zeros(TN_DIMS(0, 3), TN_F32), tn_zeros(TN_DIMS(3), TN_F32));
}

/* Operands in the memory being written are read as they were before. */
TEST(overlapping_operands) {
    tn_tensor *x = count_to(6, TN_F32);
    tn_copy_(tn_narrow(x, 0, 1, 5), tn_narrow(x, 0, 0, 5));
    HOLDS(x, 0, 0, 1, 2, 3, 4);
    tn_copy_(tn_narrow(x, 0, 0, 5), tn_narrow(x, 0, 1, 5));
    HOLDS(x, 0, 1, 2, 3, 4, 4);
    tn_add_(tn_narrow(x, 0, 1, 5), tn_narrow(x, 0, 0, 5));
    HOLDS(x, 0, 1, 3, 5, 7, 8);
    tn_sub_(x, tn_select(x, 0, 1)); /* one of its own elements, repeated */
    HOLDS(x, -1, 0, 2, 4, 6, 7);
    tn_tensor *m = tn_reshape(count_to(9, TN_F64), TN_DIMS(3, 3));
    tn_copy_(m, tn_t(m));
    HOLDS(m, 0, 3, 6, 1, 4, 7, 2, 5, 8);
    tn_add_(m, tn_t(m));
    HOLDS(m, 0, 4, 8, 4, 8, 12, 8, 12, 16);
    tn_add_scaled_(m, tn_t(m), -1.0);
    HOLDS(m, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    tn_tensor *y = count_to(3, TN_F32);
    tn_mul_(y, y);
    tn_copy_(y, y);
    HOLDS(y, 0, 1, 4);
    /* Two storages over the same memory. */
    float memory[4] = {1, 2, 3, 4};
    tn_tensor *a = tn_from_memory(memory, TN_DIMS(3), TN_F32, NULL, NULL);
    tn_tensor *b = tn_from_memory(memory + 1, TN_DIMS(3), TN_F32, NULL, NULL);
    tn_copy_(b, a);
    assert_float_equal(memory[3], 3.0f, 0.0f);
    assert_float_equal(memory[2], 2.0f, 0.0f);
}

/* Large enough for several threads and vectors: a shift by one must not smear. */
TEST(overlap_large) {
    int64_t n = 100000;
    tn_tensor *x = count_to(n, TN_F64), *expected = count_to(n - 1, TN_F64);
    tn_copy_(tn_narrow(x, 0, 1, n - 1), tn_narrow(x, 0, 0, n - 1));
    assert_true(tn_equal(tn_narrow(x, 0, 1, n - 1), expected));
}

TEST(recorded_are_refused) {
    tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true), *y = tn_mul(w, w);
    assert_inert(tn_add_(w, tn_ones(TN_DIMS(2), TN_F32)), TN_ESTATE, "add_: x [2] is a leaf");
    assert_inert(tn_zero_(y), TN_ESTATE, "recorded mul");
    assert_inert(tn_uniform_(w, 0, 1, NULL), TN_ESTATE, "uniform_");
    HOLDS(w, 1, 1);
    {
        TN_NO_GRAD;
        HOLDS(tn_add_scalar_(w, 1.0), 2, 2);
        HOLDS(tn_mul_scalar_(tn_narrow(w, 0, 0, 1), 2.0), 4);
        assert_inert(tn_zero_(y), TN_ESTATE, "");
        tn_zero_(tn_detach(y));
    }
    HOLDS(w, 4, 2);
    HOLDS(y, 0, 0);
}

enum { CHANGES = 14 };

/* The i-th function that changes x, the last one through a view. */
static tn_tensor *change_by(int i, tn_tensor *x, tn_tensor *y, tn_generator *g) {
    switch (i) {
    case 0:
        return tn_copy_(x, y);
    case 1:
        return tn_fill_(x, 9);
    case 2:
        return tn_zero_(x);
    case 3:
        return tn_add_(x, y);
    case 4:
        return tn_sub_(x, y);
    case 5:
        return tn_mul_(x, y);
    case 6:
        return tn_div_(x, y);
    case 7:
        return tn_add_scaled_(x, y, 2);
    case 8:
        return tn_add_scalar_(x, 9);
    case 9:
        return tn_mul_scalar_(x, 9);
    case 10:
        return tn_clamp_(x, 9, 9);
    case 11:
        return tn_uniform_(x, 0, 1, g);
    case 12:
        return tn_normal_(x, 0, 1, g);
    default:
        return tn_zero_(tn_narrow(x, 0, 1, 1));
    }
}

/* Backward notices every change of elements that it needs; others may change. */
TEST(changes_are_noticed) {
    for (int i = 0; i < CHANGES; i++) {
        TN_SCOPE;
        tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true),
                  *x = tn_ones(TN_DIMS(2), TN_F32);
        tn_tensor *loss = tn_sum_all(tn_mul(w, x));
        change_by(i, x, tn_ones(TN_DIMS(2), TN_F32), NULL);
        assert_int_equal(tn_error(), TN_OK);
        assert_int_equal(tn_backward(loss), TN_ESTATE);
        tn_error_clear();
    }
    TN_SCOPE;
    tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true),
              *x = tn_ones(TN_DIMS(2), TN_F32);
    tn_tensor *loss = tn_sum_all(tn_add(w, x));
    tn_zero_(x);
    assert_int_equal(tn_backward(loss), TN_OK);
}

TEST(nothing_while_an_error_is_pending) {
    tn_tensor *x = count_to(2, TN_F32), *y = tn_ones(TN_DIMS(2), TN_F32);
    tn_generator g = {1, 0, 0};
    tn_raise(TN_EVALUE, "earlier");
    for (int i = 0; i < CHANGES; i++) {
        assert_true(tn_is_inert(change_by(i, x, y, &g)));
    }
    assert_non_null(strstr(tn_error_message(), "earlier"));
    tn_error_clear();
    HOLDS(x, 0, 1);
    assert_int_equal(g.call, 0);
    /* An inert operand changes nothing either, even when its error has been cleared. */
    tn_tensor *inert = tn_zeros(TN_DIMS(-1), TN_F32);
    tn_error_clear();
    assert_true(tn_is_inert(tn_add_(x, inert)));
    assert_true(tn_is_inert(tn_copy_(x, inert)));
    assert_true(tn_is_inert(tn_zero_(inert)));
    assert_true(tn_is_inert(tn_clamp_(inert, 0, 1)));
    assert_true(tn_is_inert(tn_add_scaled_(x, inert, 2)));
    HOLDS(x, 0, 1);
}

TEST(draws_in_place) {
    tn_generator g = {5, 2, 0}, same = {5, 2, 0};
    tn_tensor *x = tn_zeros(TN_DIMS(50, 40), TN_F64), *y = tn_zeros(TN_DIMS(40, 50), TN_F64);
    uint64_t call = tn_default_generator()->call;
    tn_uniform_(x, -2.0, 6.0, &g);
    assert_int_equal(g.call, 1);
    assert_int_equal(tn_default_generator()->call, call);
    assert_true(tn_item(tn_min(x, TN_DIMS(), false)) >= -2.0 &&
                tn_item(tn_max(x, TN_DIMS(), false)) < 6.0);
    assert_float_equal(tn_item(tn_mean_all(x)), 2.0, 0.2);
    /* an element depends on its position, not on its address */
    tn_uniform_(tn_t(y), -2.0, 6.0, &same);
    assert_true(tn_equal(x, tn_t(y)));
    tn_normal_(x, 3.0, 0.5, &g);
    assert_float_equal(tn_item(tn_mean_all(x)), 3.0, 0.05);
    assert_float_equal(tn_item(tn_var(x, TN_DIMS(), 1, false)), 0.25, 0.03);
    tn_normal_(x, 1.0, 0.0, NULL);
    assert_true(tn_equal(x, tn_ones_like(x)));
    assert_int_equal(tn_default_generator()->call, call + 1);
    assert_inert(tn_uniform_(x, 1.0, 0.0, NULL), TN_EVALUE, "low is 1 but high is 0");
    assert_inert(tn_uniform_(x, 0.0, INFINITY, NULL), TN_EVALUE, "low is 0 and high is inf");
    assert_inert(tn_uniform_(x, -1e308, 1e308, NULL), TN_EVALUE, "high is 1e+308");
    assert_inert(tn_uniform_(tn_zeros(TN_DIMS(2), TN_F16), 0.0, 1e5, NULL), TN_EVALUE,
                 "f16 goes up to 65504");
    assert_inert(tn_uniform_(tn_zeros(TN_DIMS(2), TN_F32), -1e39, 0.0, NULL), TN_EVALUE, "f32");
    assert_inert(tn_normal_(x, 0.0, -1.0, NULL), TN_EVALUE, "std is -1");
    assert_inert(tn_normal_(x, 0.0, NAN, NULL), TN_EVALUE, "std");
    assert_inert(tn_uniform_(count_to(2, TN_I64), 0, 1, NULL), TN_EDTYPE, "i64");
}

/* Temporaries of overlapping operands are gone when the call returns. */
TEST(leaks_nothing) {
    tn_tensor *m = tn_zeros(TN_DIMS(3, 3), TN_F64), *t = tn_t(m);
    int64_t live = tn_live_tensors();
    tn_add_(m, t);
    tn_copy_(m, t);
    tn_add_scaled_(m, t, 2.0);
    assert_int_equal(tn_live_tensors(), live);
}
