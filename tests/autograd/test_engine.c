/* The engine: sums, order, retained and freed graphs, gradients of chosen inputs, second
 * derivatives, long graphs, in-place changes. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

static tn_tensor *scalar_leaf(double value) {
    return tn_set_requires_grad(tn_scalar(value, TN_F64), true);
}

static double grad_item(const tn_tensor *t) {
    return tn_grad_of(t) ? tn_item(tn_grad_of(t)) : NAN;
}

/* x reaches the loss along three paths; its gradient is their sum, added once. */
TEST(sums_paths) {
    tn_tensor *x = scalar_leaf(3.0);
    tn_tensor *square = tn_mul(x, x);                              /* 2 x */
    tn_backward(tn_add(tn_mul(square, x), tn_mul_scalar(x, 5.0))); /* 3 x x + 5 */
    assert_int_equal(tn_error(), TN_OK);
    assert_float_equal(grad_item(x), 32.0, 1e-12);
}

TEST(accumulates_gradients) {
    tn_tensor *x = scalar_leaf(2.0);
    tn_backward(tn_mul(x, x));
    tn_backward(tn_mul(x, x));
    assert_float_equal(grad_item(x), 8.0, 1e-12);
    tn_zero_grad(x);
    assert_null(tn_grad_of(x));
    tn_backward(tn_mul(x, x));
    assert_float_equal(grad_item(x), 4.0, 1e-12);
}

TEST(broadcast_is_summed) {
    tn_tensor *row = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F64), true);
    tn_tensor *column = tn_set_requires_grad(tn_full(TN_DIMS(2, 1), 4.0, TN_F64), true);
    tn_backward(tn_sum_all(tn_mul(row, column)));
    tn_dims three = TN_DIMS(3), two_one = TN_DIMS(2, 1);
    assert_true(tn_dims_equal(tn_shape(tn_grad_of(row)), three));
    assert_true(tn_dims_equal(tn_shape(tn_grad_of(column)), two_one));
    assert_float_equal(tn_at(tn_grad_of(row), TN_DIMS(1)), 8.0, 1e-12);
    assert_float_equal(tn_at(tn_grad_of(column), TN_DIMS(1, 0)), 3.0, 1e-12);
}

TEST(second_backward_is_an_error) {
    tn_tensor *x = scalar_leaf(2.0), *y = tn_mul(x, x);
    assert_int_equal(tn_backward_from(&y, NULL, 1, true), TN_OK);
    assert_int_equal(tn_backward(y), TN_OK); /* retained for one more backward */
    assert_float_equal(grad_item(x), 8.0, 1e-12);
    assert_int_equal(tn_backward(y), TN_ESTATE);
    assert_non_null(strstr(tn_error_message(), "second time"));
    assert_float_equal(grad_item(x), 8.0, 1e-12); /* noticed before anything was added */
    tn_error_clear();
}

/* An earlier backward may have freed what the chosen inputs do not need. */
TEST(spent_beside_the_way) {
    tn_tensor *x = scalar_leaf(2.0), *w = scalar_leaf(3.0), *y = tn_mul(x, x), *grads[1];
    assert_int_equal(tn_backward(y), TN_OK);
    tn_tensor *z = tn_add(y, tn_mul(w, w));
    assert_int_equal(tn_grad(&z, NULL, 1, &w, 1, grads, tn_grad_defaults()), TN_OK);
    assert_float_equal(tn_item(grads[0]), 6.0, 0.0);
    z = tn_mul(y, y);
    assert_int_equal(tn_grad(&z, NULL, 1, &y, 1, grads, tn_grad_defaults()), TN_OK);
    assert_float_equal(tn_item(grads[0]), 8.0, 0.0);
    z = tn_mul(y, y);
    assert_int_equal(tn_grad(&z, NULL, 1, &x, 1, grads, tn_grad_defaults()), TN_ESTATE);
    tn_error_clear();
}

TEST(roots_and_given_gradients) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    tn_tensor *a = tn_mul_scalar(x, 3.0), *b = tn_mul(x, x);
    tn_tensor *roots[2] = {a, b},
              *grads[2] = {tn_full(TN_DIMS(2), 10.0, TN_F64), tn_ones(TN_DIMS(2), TN_F64)};
    assert_int_equal(tn_backward_from(roots, grads, 2, false), TN_OK);
    assert_float_equal(tn_at(tn_grad_of(x), TN_DIMS(0)), 32.0, 1e-12);
    tn_tensor *leaf_root = scalar_leaf(1.0);
    assert_int_equal(tn_backward(leaf_root), TN_OK);
    assert_float_equal(grad_item(leaf_root), 1.0, 0.0);
}

TEST(bad_roots) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    assert_int_equal(tn_backward(tn_mul(x, x)), TN_ESHAPE);
    tn_error_clear();
    assert_int_equal(tn_backward(tn_scalar(1.0, TN_F32)), TN_ESTATE);
    tn_error_clear();
    assert_int_equal(tn_backward(NULL), TN_EVALUE);
    assert_int_equal(tn_backward(tn_sum_all(x)), TN_EVALUE); /* refuses: an error is pending */
    tn_error_clear();
    assert_null(tn_grad_of(x));
    tn_tensor *root = tn_mul(x, x), *wrong = tn_ones(TN_DIMS(3), TN_F64);
    assert_int_equal(tn_backward_from(&root, &wrong, 1, false), TN_ESHAPE);
    tn_error_clear();
}

/* tn_grad for an intermediate result, a leaf, and an unused tensor; nothing is added to leaves. */
TEST(chosen_inputs) {
    tn_tensor *x = scalar_leaf(2.0), *other = scalar_leaf(7.0);
    tn_tensor *middle = tn_mul(x, x), *y = tn_mul(middle, middle);
    tn_tensor *inputs[3] = {middle, x, other}, *results[3];
    tn_grad_options o = TN_WITH(tn_grad, .retain_graph = true);
    assert_int_equal(tn_grad(&y, NULL, 1, inputs, 2, results, o), TN_OK);
    assert_float_equal(tn_item(results[0]), 8.0, 1e-12);
    assert_float_equal(tn_item(results[1]), 32.0, 1e-12);
    assert_null(tn_grad_of(x));
    assert_int_equal(tn_grad(&y, NULL, 1, inputs, 3, results, o), TN_EVALUE);
    assert_true(tn_is_inert(results[0]));
    tn_error_clear();
    o.allow_unused = true;
    assert_int_equal(tn_grad(&y, NULL, 1, inputs, 3, results, o), TN_OK);
    assert_null(results[2]);
}

/* d3/dx3 of x^4 = 24 x. */
TEST(third_derivative) {
    tn_tensor *x = scalar_leaf(1.5), *y = tn_pow_scalar(x, 4.0);
    tn_grad_options o = TN_WITH(tn_grad, .create_graph = true);
    double expected[3] = {4 * 1.5 * 1.5 * 1.5, 12 * 1.5 * 1.5, 24 * 1.5};
    for (int i = 0; i < 3; i++) {
        tn_tensor *next;
        assert_int_equal(tn_grad(&y, NULL, 1, &x, 1, &next, o), TN_OK);
        assert_float_equal(tn_item(next), expected[i], 1e-9);
        y = next;
    }
}

TEST(changed_saved_tensor) {
    tn_tensor *x = scalar_leaf(2.0), *factor = tn_scalar(3.0, TN_F64), *y = tn_mul(x, factor);
    tn_fill_(factor, 4.0);
    assert_int_equal(tn_backward(y), TN_ESTATE);
    assert_non_null(strstr(tn_error_message(), "mul"));
    assert_non_null(strstr(tn_error_message(), "changed in place"));
    assert_null(tn_grad_of(x));
    tn_error_clear();
    /* Tensors that are not saved may change: add's rule reads none. */
    tn_tensor *z = tn_add(x, factor);
    tn_fill_(factor, 5.0);
    assert_int_equal(tn_backward(z), TN_OK);
}

TEST(gradient_modes) {
    tn_tensor *x = scalar_leaf(2.0);
    {
        TN_NO_GRAD;
        assert_false(tn_requires_grad(tn_mul(x, x)));
        bool before = tn_grad_mode_begin(true);
        assert_true(tn_requires_grad(tn_mul(x, x)));
        tn_grad_mode_end(&before);
        assert_false(tn_grad_mode());
    }
    assert_true(tn_grad_mode());
    tn_tensor *y = tn_mul(x, x);
    assert_false(tn_is_leaf(y));
    assert_true(tn_is_leaf(tn_detach(y)));
    assert_true(tn_shares_storage(y, tn_detach(y)));
    assert_false(tn_requires_grad(tn_detach(y)));
    tn_set_requires_grad(y, true);
    assert_int_equal(tn_error(), TN_ESTATE);
    tn_error_clear();
    tn_set_requires_grad(tn_zeros(TN_DIMS(2), TN_I64), true);
    assert_int_equal(tn_error(), TN_EDTYPE);
    tn_error_clear();
}

/* ---- Gradient buffers and dtypes ------------------------------------------------------------- */

TEST(preset_buffer) {
    tn_tensor *bucket = tn_full(TN_DIMS(5), 100.0, TN_F64);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    tn_tensor *view = tn_alias(bucket, 1, TN_DIMS(2));
    assert_int_equal(tn_set_grad_buffer(x, view), TN_OK);
    assert_null(tn_grad_of(x)); /* nothing has been written yet */
    for (int i = 1; i <= 2; i++) {
        tn_backward(tn_sum_all(tn_mul_scalar(x, 3.0)));
        assert_ptr_equal(tn_grad_of(x), view);
        assert_float_equal(tn_at(bucket, TN_DIMS(1)), 3.0 * i, 0.0);
        assert_float_equal(tn_at(bucket, TN_DIMS(0)), 100.0, 0.0);
        assert_float_equal(tn_at(bucket, TN_DIMS(3)), 100.0, 0.0);
    }
    tn_zero_grad(x);
    tn_backward(tn_sum_all(tn_mul_scalar(x, 7.0)));
    assert_float_equal(tn_at(bucket, TN_DIMS(2)), 7.0, 0.0);
    tn_tensor *wrong = tn_zeros(TN_DIMS(3), TN_F64);
    assert_int_equal(tn_set_grad_buffer(x, wrong), TN_ESHAPE);
    tn_error_clear();
}

/* bf16 cannot hold 1 + 2^-9, so a bf16 gradient would lose the second contribution. */
TEST(grad_dtype) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_BF16), true);
    assert_int_equal(tn_set_grad_dtype(x, TN_F32), TN_OK);
    tn_backward(tn_sum_all(x));
    tn_backward(tn_sum_all(tn_mul_scalar(x, 1.0 / 512)));
    assert_int_equal(tn_dtype_of(tn_grad_of(x)), TN_F32);
    assert_float_equal(tn_at(tn_grad_of(x), TN_DIMS(0)), 1.0 + 1.0 / 512, 0.0);
}

TEST(gradient_belongs_to_the_leaf) {
    tn_tensor *x = scalar_leaf(1.0), *y = scalar_leaf(1.0);
    tn_backward(tn_add(x, y)); /* add passes one tensor to both */
    tn_mul_scalar_(tn_grad_of(x), 5.0);
    assert_float_equal(grad_item(y), 1.0, 0.0);
    tn_tensor *one = tn_scalar(1.0, TN_F64);
    tn_tensor *root = tn_mul_scalar(x, 1.0);
    tn_zero_grad(x);
    tn_backward_from(&root, &one, 1, false);
    tn_mul_scalar_(tn_grad_of(x), 5.0);
    assert_float_equal(tn_item(one), 1.0, 0.0); /* the caller's gradient is not overwritten */
}

/* ---- Long graphs ----------------------------------------------------------------------------- */

enum { LONG = 1000000 };

static void *long_graph(void *result) {
    int64_t before = tn_live_tensors();
    {
        TN_SCOPE;
        tn_tensor *x = scalar_leaf(1.0);
        tn_tensor *y = tn_keep(tn_add_scalar(x, 0.0));
        for (int i = 0; i < LONG; i++) {
            TN_SCOPE;
            tn_tensor *next = tn_keep(tn_add(y, x));
            tn_release(y);
            y = next;
        }
        tn_backward(y);
        ((double *)result)[0] = grad_item(x);
        tn_release(y);
        /* And one that is dropped without backward. */
        y = tn_keep(tn_mul(x, x));
        for (int i = 0; i < LONG / 4; i++) {
            TN_SCOPE;
            tn_tensor *next = tn_keep(tn_mul(y, x));
            tn_release(y);
            y = next;
        }
        tn_release(y);
    }
    ((double *)result)[1] = (double)(tn_live_tensors() - before);
    return NULL;
}

static void join_and_run(tn_tensor *wide, tn_tensor **small) {
    *small = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    tn_tensor *parts[2] = {*small, wide};
    tn_tensor *all = tn_cat(parts, 2, 0);
    tn_backward(tn_sum_all(tn_mul(all, all)));
}

/* A small leaf's gradient arrives as a view of a large tensor: the leaf keeps only its part. */
TEST(gradient_keeps_no_large_storage) {
    tn_tensor *wide = tn_ones(TN_DIMS(1 << 16), TN_F64), *small;
    int64_t before = tn_memory().allocated;
    {
        TN_SCOPE;
        join_and_run(wide, &small);
        tn_return(small);
    }
    assert_float_equal(tn_item(tn_sum_all(tn_grad_of(small))), 4.0, 0.0);
    assert_true(tn_memory().allocated - before < 4096);
}

TEST(million_nodes_on_a_small_stack) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
    pthread_t thread;
    double result[2] = {0.0, -1.0};
    assert_int_equal(pthread_create(&thread, &attributes, long_graph, result), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    assert_float_equal(result[0], LONG + 1.0, 0.0);
    assert_float_equal(result[1], 0.0, 0.0);
}

/* Many nodes that are ready at once: the queue and the table grow. */
TEST(wide_graph) {
    tn_tensor *x = scalar_leaf(2.0);
    tn_tensor *parts[3000];
    for (int i = 0; i < 3000; i++) {
        parts[i] = tn_mul_scalar(x, i);
    }
    tn_backward(tn_sum_all(tn_stack(parts, 3000, 0)));
    assert_int_equal(tn_error(), TN_OK);
    assert_float_equal(grad_item(x), 3000.0 * 2999.0 / 2.0, 0.0);
}

/* ---- Anomalies and drawn graphs -------------------------------------------------------------- */

TEST(anomaly_names_the_operation) {
    tn_tensor *x = scalar_leaf(0.0);
    tn_set_anomaly(true);
    tn_log(tn_neg(tn_add_scalar(x, 1.0)));
    assert_error(TN_EVALUE, "log: the result");
    char place[64]; /* of the forward, not of backward or of an earlier error */
    snprintf(place, sizeof place, "test_engine.c:%d", __LINE__ + 1);
    tn_tensor *root = tn_sqrt(x);
    tn_tensor *y = tn_mul(root, root); /* forward is fine; backward is 0 * inf */
    assert_int_equal(tn_backward(y), TN_EVALUE);
    assert_non_null(strstr(tn_error_message(), "sqrt: the gradient"));
    assert_non_null(strstr(tn_error_message(), place));
    tn_set_anomaly(false);
    tn_error_clear();
}

/* The graph that leads to y, as DOT; the caller frees it. */
static char *drawn_graph(void **state, const tn_tensor *y) {
    const char *path = temp_path("graph.dot");
    assert_int_equal(tn_graph_dot(y, path, NULL, NULL), TN_OK);
    size_t bytes;
    char *text = (char *)temp_read(path, &bytes);
    assert_non_null(text);
    temp_clean(state);
    return text;
}

TEST(picture_of_one_result) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, 3), TN_F32), true);
    tn_tensor *y = tn_sum_all(tn_exp(x));
    char *text = drawn_graph(state, y);
    assert_non_null(strstr(text, "digraph"));
    assert_non_null(strstr(text, "\"exp\\n[2, 3]\""));
    assert_non_null(strstr(text, "\"x\\nf32 [2, 3]\""));
    free(text);
    tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(4, 3), TN_F32), true);
    tn_tensor *parts[2] = {tn_linear_op(tn_exp(x), w, NULL),
                           tn_set_requires_grad(tn_ones(TN_DIMS(2, 4), TN_F32), true)};
    text = drawn_graph(state, tn_cat(parts, 2, 0));
    assert_non_null(strstr(text, "\"weight\\nf32 [4, 3]\""));
    assert_non_null(strstr(text, "\"leaf\\nf32 [2, 4]\"")); /* cat has no names for its inputs */
    free(text);
    assert_int_equal(tn_graph_dot(y, "/nonexistent/graph.dot", NULL, NULL), TN_EIO);
    tn_error_clear();
}

static tn_values exp_and_rows(void *user, tn_values in) {
    return tn_values_of(tn_exp(in.v[0]), tn_sum(in.v[0], TN_DIMS(1), false));
}

/* A node whose results differ in shape shows none; its outgoing arrows do. */
TEST(picture_of_several_results) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, 3), TN_F32), true);
    tn_values both = tn_recompute(exp_and_rows, NULL, NULL, TN_VALUES(x), NULL, 0);
    char *text = drawn_graph(state, tn_add(tn_sum_all(both.v[0]), tn_sum_all(both.v[1])));
    assert_non_null(strstr(text, "\"recompute\""));
    assert_non_null(strstr(text, "label=\"[2, 3]\""));
    assert_non_null(strstr(text, "label=\"[2]\""));
    free(text);
}
