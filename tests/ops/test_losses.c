/* Losses beyond the registry's samples: ignored labels, extreme values, wrong labels, logits that
 * are consumed. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static double element_at(const tn_tensor *t, int64_t i, int64_t j) {
    return tn_at(t, TN_DIMS(i, j));
}

TEST(nothing_counted_is_nan_without_gradient) {
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(2, 3), TN_F32), true);
    tn_tensor *label = tn_full(TN_DIMS(2), -100.0, TN_I32);
    tn_tensor *loss = tn_cross_entropy(x, label, TN_MEAN);
    assert_true(isnan(tn_item(loss)));
    tn_backward(loss);
    assert_int_equal(tn_error(), TN_OK);
    assert_true(tn_equal(tn_grad_of(x), tn_zeros(TN_DIMS(2, 3), TN_F32)));
}

TEST(small_floats_give_f32) {
    tn_tensor *x = tn_set_requires_grad(tn_cast(tn_randn(TN_DIMS(4, 7), TN_F32), TN_BF16), true);
    tn_tensor *label = tn_randint(0, 7, TN_DIMS(4), TN_I64);
    tn_tensor *loss = tn_cross_entropy(x, label, TN_MEAN);
    assert_int_equal(tn_dtype_of(loss), TN_F32);
    assert_float_equal(tn_item(loss),
                       tn_item(tn_cross_entropy(tn_cast(tn_detach(x), TN_F32), label, TN_MEAN)),
                       1e-6);
    tn_backward(loss);
    assert_int_equal(tn_dtype_of(tn_grad_of(x)), TN_BF16);
}

/* Logits far from 0, where softmax and the loss depend only on their differences: the same as for
 * that row near 0. PyTorch's losses and gradients are the same, too. */
TEST(far_logits_keep_their_differences) {
    static const struct {
        double far[3], near[3], smoothing;
        tn_dtype dtype;
    } cases[] = {
        {{1e8, 1e8, 1e8}, {0, 0, 0}, 0.0, TN_F32},
        {{1e8, 1e8, 1e8}, {0, 0, 0}, 0.2, TN_BF16},
        {{10000, 10001, 10002}, {0, 1, 2}, 0.0, TN_F32},
        {{10000, 10001, 10002}, {0, 1, 2}, 0.3, TN_F32},
        {{-10000, -10001, -10002}, {0, -1, -2}, 0.3, TN_F32},
        {{1024, 1025, 1026}, {0, 1, 2}, 0.3, TN_F16},
        {{1e15, 1e15 + 1, 1e15 + 2}, {0, 1, 2}, 0.3, TN_F64},
        {{1e20, 1e20, 1e20}, {0, 0, 0}, 0.0, TN_F32},
        {{3e38, 3e38, 3e38}, {0, 0, 0}, 0.1, TN_F32},
        {{3e38, 3e38, 3e38}, {0, 0, 0}, 0.1, TN_BF16},
        {{1e308, 1e308, 1e308}, {0, 0, 0}, 0.1, TN_F64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TN_SCOPE;
        tn_cross_entropy_options o = tn_cross_entropy_defaults();
        o.label_smoothing = cases[i].smoothing;
        tn_dtype dtype = cases[i].dtype;
        tn_tensor *label = tn_full(TN_DIMS(1), 1.0, TN_I64), *loss[2], *x[2];
        for (int k = 0; k < 2; k++) {
            const double *row = k == 0 ? cases[i].far : cases[i].near;
            tn_tensor *wide = tn_from_data(row, TN_DIMS(1, 3), TN_F64);
            x[k] = tn_set_requires_grad(tn_cast(wide, dtype), true);
            loss[k] = tn_cross_entropy_with(x[k], label, o);
            tn_backward(loss[k]);
        }
        assert_string_equal(tn_error_message(), "");
        double bound = dtype == TN_F64 ? 1e-15 : 1.2e-7;
        assert_true(tn_all_close(loss[0], loss[1], bound, bound));
        assert_true(tn_all_close(tn_grad_of(x[0]), tn_grad_of(x[1]), bound, bound));
    }
}

/* One logit far above the others: smoothing costs the distance, which fits in f32. */
TEST(smoothing_costs_the_distance) {
    float row[] = {3e38F, 3e38F, 0.0F};
    tn_tensor *x = tn_set_requires_grad(tn_from_data(row, TN_DIMS(1, 3), TN_F32), true);
    tn_cross_entropy_options o = TN_WITH(tn_cross_entropy, .label_smoothing = 0.1);
    tn_tensor *loss = tn_cross_entropy_with(x, tn_zeros(TN_DIMS(1), TN_I64), o);
    tn_backward(loss);
    assert_float_equal(tn_item(loss), 1e37, 1e31); /* PyTorch: 9.999999680285692e+36 */
    assert_float_equal(element_at(tn_grad_of(x), 0, 0), -13.0 / 30.0, 1e-7);
    assert_float_equal(element_at(tn_grad_of(x), 0, 1), 14.0 / 30.0, 1e-7);
    assert_float_equal(element_at(tn_grad_of(x), 0, 2), -1.0 / 30.0, 1e-7);
}

/* What an ignored row holds does not matter to either form of the gradient. */
TEST(ignored_rows_may_be_anything) {
    const int64_t label[] = {1, -100, 0, -100, -100};
    for (int k = 0; k < 4; k++) {
        TN_SCOPE;
        tn_tensor *x = tn_randn(TN_DIMS(5, 3), TN_F32);
        tn_fill_(tn_select(x, 0, 1), NAN);
        tn_fill_(tn_select(x, 0, 3), INFINITY);
        tn_fill_(tn_select(x, 0, 4), -INFINITY);
        tn_set_requires_grad(x, true);
        tn_cross_entropy_options o = tn_cross_entropy_defaults();
        o.label_smoothing = k & 1 ? 0.1 : 0.0;
        tn_tensor *loss = tn_cross_entropy_with(x, tn_from_data(label, TN_DIMS(5), TN_I64), o);
        assert_true(isfinite(tn_item(loss)));
        tn_grad_options options = TN_WITH(tn_grad, .create_graph = k & 2);
        tn_tensor *dy = tn_ones_like(loss), *dx = NULL;
        tn_grad(&loss, &dy, 1, &x, 1, &dx, options);
        assert_string_equal(tn_error_message(), "");
        for (int64_t i = 0; i < 15; i++) {
            double slope = element_at(dx, i / 3, i % 3);
            assert_true(label[i / 3] < 0 ? slope == 0.0 : slope != 0.0 && isfinite(slope));
        }
    }
}

TEST(bad_labels_are_named) {
    tn_tensor *x = tn_zeros(TN_DIMS(3, 5), TN_F32);
    int64_t high[] = {0, 1, 5}, low[] = {0, -1, 2};
    assert_inert(
        tn_cross_entropy(x, tn_from_data(high, TN_DIMS(3), TN_I64), TN_MEAN), TN_EINDEX,
        "cross_entropy: label 5 at position 2 is outside [0, 5) and is not ignore_index (-100)");
    assert_inert(tn_cross_entropy(x, tn_from_data(low, TN_DIMS(3), TN_I64), TN_NONE), TN_EINDEX,
                 "label -1 at position 1 is outside [0, 5)");
}

/* The same gradient in the logits' own memory; a second backward finds them changed; a leaf is
 * left alone. */
TEST(logits_can_be_consumed) {
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(64, 512), TN_F32), true),
              *label = tn_randint(0, 512, TN_DIMS(64), TN_I64);
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    tn_backward(tn_cross_entropy_with(tn_mul_scalar(x, 2.0), label, o));
    tn_tensor *want = tn_copy(tn_grad_of(x)), *before = tn_copy(tn_detach(x));
    tn_zero_grad(x);
    o.consume_logits = true;
    tn_tensor *logits = tn_mul_scalar(x, 2.0), *loss = tn_cross_entropy_with(logits, label, o);
    tn_tensor *saved = tn_copy(tn_detach(logits));
    assert_int_equal(tn_backward_from(&loss, NULL, 1, true), TN_OK);
    assert_true(tn_all_close(tn_grad_of(x), want, 1e-6, 1e-9));
    assert_false(tn_equal(tn_detach(logits), saved));
    assert_int_equal(tn_backward(loss), TN_ESTATE);
    assert_non_null(strstr(tn_error_message(), "changed"));
    tn_error_clear();
    tn_zero_grad(x);
    assert_int_equal(tn_backward(tn_cross_entropy_with(x, label, o)), TN_OK);
    assert_true(tn_equal(tn_detach(x), before));
}

/* A leaf seen through a view, and logits that are repeated: neither can hold its own gradient. */
TEST(some_logits_are_kept) {
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    tn_tensor *label = tn_randint(0, 5, TN_DIMS(6), TN_I64);
    for (int64_t rows = 1; rows <= 6; rows += 5) {
        TN_SCOPE;
        tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(rows, 5), TN_F32), true);
        tn_tensor *before = tn_copy(tn_detach(x)), *want;
        o.consume_logits = false;
        tn_backward(tn_cross_entropy_with(tn_expand(x, TN_DIMS(6, 5)), label, o));
        want = tn_copy(tn_grad_of(x));
        tn_zero_grad(x);
        o.consume_logits = true;
        tn_backward(tn_cross_entropy_with(tn_expand(x, TN_DIMS(6, 5)), label, o));
        assert_true(tn_all_close(tn_grad_of(x), want, 1e-6, 1e-9));
        assert_true(tn_equal(tn_detach(x), before));
    }
}

/* Logarithms are clamped, and their slopes, 1 / x, at 1e12: as PyTorch's. Where target and x are
 * both 0, or 1, the slope is that of the side that is left, where PyTorch has 0. */
TEST(bce_of_certain_probabilities) {
    tn_tensor *x =
        TN_FROM(((float[]){0, 0, 1, 1, 0, 1e-45F, 1e-30F, 1e-30F, 1e-45F}), TN_DIMS(9), TN_F32);
    tn_tensor *target = TN_FROM(((float[]){0, 1, 0, 1, 0.25, 0, 1, 0, 1}), TN_DIMS(9), TN_F32);
    tn_set_requires_grad(x, true);
    tn_tensor *each = tn_bce(x, target, NULL, TN_NONE);
    tn_backward(tn_sum_all(each));
    static const double values[] = {0, 100, 100, 0, 25, 0, 69.0775528, 0, 100},
                        slopes[] = {1, -1e12, 1e12, -1, -2.5e11, 1, -1e12, 1, -1e12};
    for (int64_t i = 0; i < 9; i++) {
        double slope = tn_at(tn_grad_of(x), TN_DIMS(i));
        assert_float_equal(tn_at(each, TN_DIMS(i)), values[i], 1e-4);
        assert_true(fabs(slope / slopes[i] - 1) < 1e-6); /* not NaN */
    }
}

/* PyTorch's rule: "all elements of input should be between 0 and 1", and of target (from 2.x on).
 */
TEST(bce_of_no_probabilities) {
    if (tn_default_device().kind != TN_CPU) {
        skip(); /* finding it would have to wait for the device */
    }
    const tn_dtype floats[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    static const double wrong[] = {1.5, -0.25, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        tn_tensor *x = tn_full(TN_DIMS(3, 2), 0.5, floats[i]), *t = tn_ones_like(x);
        for (int k = 0; k < 5; k++) {
            char told[64];
            snprintf(told, sizeof told, "bce: x[0, 2] is %g (it must be between 0 and 1; ",
                     wrong[k]);
            tn_fill_(tn_select(tn_select(x, 0, 2), 0, 0), wrong[k]);
            assert_inert(tn_bce(tn_t(x), tn_t(t), NULL, TN_MEAN), TN_EVALUE, told);
        }
    }
    tn_tensor *half = tn_scalar(0.5, TN_F32), *more = tn_scalar(1.5, TN_F32);
    assert_inert(tn_bce(more, half, NULL, TN_MEAN), TN_EVALUE,
                 "bce: x is 1.5 (it must be between 0 and 1; logits go to tn_bce_with_logits)");
    assert_inert(tn_bce(half, more, NULL, TN_MEAN), TN_EVALUE,
                 "bce: target is 1.5 (it must be between 0 and 1)");
}

TEST(triplets_by_the_largest_distance) {
    tn_tensor *a = TN_FROM(((double[]){1, 2}), TN_DIMS(2), TN_F64);
    tn_tensor *p = TN_FROM(((double[]){1, 5}), TN_DIMS(2), TN_F64);
    tn_tensor *n = TN_FROM(((double[]){3, 2}), TN_DIMS(2), TN_F64);
    tn_triplet_options o = TN_WITH(tn_triplet, .p = INFINITY);
    tn_set_requires_grad(a, true);
    tn_tensor *loss = tn_triplet_margin(a, p, n, o);
    assert_float_equal(tn_item(loss), 2.0, 1e-5);
    tn_backward(loss);
    assert_float_equal(tn_at(tn_grad_of(a), TN_DIMS(0)), 1.0, 0.0);
    assert_float_equal(tn_at(tn_grad_of(a), TN_DIMS(1)), -1.0, 0.0);
}

/* The second derivative of d^2 / 2 is 1 at 0, too. */
TEST(curved_where_they_vanish) {
    for (int which = 0; which < 2; which++) {
        TN_SCOPE;
        tn_tensor *x = tn_set_requires_grad(tn_full(TN_DIMS(), 3.0, TN_F64), true);
        tn_tensor *target = tn_full(TN_DIMS(), 3.0, TN_F64), *slope, *second;
        tn_tensor *loss =
            which ? tn_huber(x, target, TN_SUM, 1.0) : tn_smooth_l1(x, target, TN_SUM, 1.0);
        tn_grad_options o = TN_WITH(tn_grad, .create_graph = true);
        tn_grad(&loss, NULL, 1, &x, 1, &slope, o);
        tn_grad(&slope, NULL, 1, &x, 1, &second, tn_grad_defaults());
        assert_float_equal(tn_item(second), 1.0, 0.0);
        assert_inert(which ? tn_huber(x, target, TN_SUM, 0.0)
                           : tn_smooth_l1(x, target, TN_SUM, -1.0),
                     TN_EVALUE, which ? "delta is 0" : "beta is -1");
    }
}

/* NaN in one sequence is in its loss and in all of its gradient, and in no other's. */
TEST(ctc_of_nan) {
    enum { T = 3, N = 2, C = 4 };
    tn_tensor *x = tn_log_softmax(tn_randn(TN_DIMS(T, N, C), TN_F64), -1),
              *said = TN_FROM(((const int64_t[]){1, 2, 2, 3}), TN_DIMS(N, 2), TN_I64);
    tn_tensor *here = tn_zeros(TN_DIMS(T, N, C), TN_BOOL);
    tn_copy_(tn_select(tn_select(tn_select(here, 0, 1), 0, 0), 0, 1), tn_ones(TN_DIMS(), TN_BOOL));
    x = tn_set_requires_grad(tn_copy(tn_masked_fill(x, here, NAN)), true);
    for (int zero = 0; zero < 2; zero++) {
        tn_ctc_options o = TN_WITH(tn_ctc, .reduction = TN_NONE, .zero_infinity = zero);
        tn_tensor *loss =
            tn_ctc(x, said, tn_full(TN_DIMS(N), T, TN_I64), tn_full(TN_DIMS(N), 2, TN_I64), o);
        tn_tensor *one = tn_ones(TN_DIMS(N), TN_F64), *dx;
        assert_int_equal(tn_grad(&loss, &one, 1, &x, 1, &dx, tn_grad_defaults()), TN_OK);
        assert_true(isnan(tn_at(loss, TN_DIMS(0))) && isfinite(tn_at(loss, TN_DIMS(1))));
        for (int64_t i = 0; i < T * C; i++) {
            assert_true(isnan(tn_at(dx, TN_DIMS(i / C, 0, i % C))));
            assert_true(isfinite(tn_at(dx, TN_DIMS(i / C, 1, i % C))));
        }
        loss = tn_ctc(x, said, tn_full(TN_DIMS(N), T, TN_I64), tn_full(TN_DIMS(N), 2, TN_I64), o);
        tn_grad(&loss, &one, 1, &x, 1, &dx, TN_WITH(tn_grad, .create_graph = true));
        assert_error(TN_EUNSUPPORTED, "ctc: its gradient has only a kernel, which cannot be "
                                      "differentiated again");
    }
}
