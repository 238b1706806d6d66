/* Picking rows and elements: values, gradients of repeated indices, indices out of range, and a
 * weight tied to a classifier. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static tn_tensor *count_up(tn_dims dims) {
    return tn_reshape(tn_arange(0.0, (double)tn_dims_count(dims), 1.0, TN_F64), dims);
}

static tn_tensor *index_of(const int64_t *values, tn_dims dims) {
    return tn_from_data(values, dims, TN_I64);
}

static void assert_holds(tn_tensor *t, const double *values, tn_dims dims) {
    assert_string_equal(tn_error_message(), "");
    assert_true(tn_equal(tn_detach(t), tn_from_data(values, dims, TN_F64)));
}

TEST(selects_along_any_dimension) {
    tn_tensor *x = tn_set_requires_grad(tn_copy(count_up(TN_DIMS(2, 3))), true);
    tn_tensor *index = index_of((int64_t[]){2, 0, 2, 2}, TN_DIMS(4));
    tn_tensor *y = tn_index_select(x, -1, index);
    assert_holds(y, (double[]){2, 0, 2, 2, 5, 3, 5, 5}, TN_DIMS(2, 4));
    tn_backward(tn_sum_all(tn_mul(y, count_up(TN_DIMS(2, 4)))));
    assert_holds(tn_grad_of(x), (double[]){1, 0, 5, 5, 0, 17},
                 TN_DIMS(2, 3)); /* equal indices add up */
    assert_holds(tn_index_select(tn_t(tn_detach(x)), 0, index), (double[]){2, 5, 0, 3, 2, 5, 2, 5},
                 TN_DIMS(4, 2));
}

TEST(gathers_elements) {
    tn_tensor *x = tn_set_requires_grad(tn_copy(count_up(TN_DIMS(3, 3))), true);
    tn_tensor *index = index_of((int64_t[]){2, 2, 0, 1}, TN_DIMS(2, 2)); /* fewer rows than x */
    tn_tensor *y = tn_gather(x, 1, index);
    assert_holds(y, (double[]){2, 2, 3, 4}, TN_DIMS(2, 2));
    tn_backward(tn_sum_all(tn_mul(y, count_up(TN_DIMS(2, 2)))));
    assert_holds(tn_grad_of(x), (double[]){0, 0, 1, 2, 3, 0, 0, 0, 0}, TN_DIMS(3, 3));
    assert_holds(tn_gather(tn_detach(x), 0, index), (double[]){6, 7, 0, 4}, TN_DIMS(2, 2));
}

TEST(embeds_any_shape) {
    tn_tensor *w = tn_set_requires_grad(tn_copy(count_up(TN_DIMS(3, 2))), true);
    tn_tensor *index = index_of((int64_t[]){2, 0, 2, 1}, TN_DIMS(2, 2));
    tn_tensor *y = tn_embedding_op(w, tn_t(index)); /* [[2, 2], [0, 1]] */
    assert_holds(y, (double[]){4, 5, 4, 5, 0, 1, 2, 3}, TN_DIMS(2, 2, 2));
    tn_backward(tn_sum_all(tn_mul(y, count_up(TN_DIMS(2, 2, 2)))));
    assert_holds(tn_grad_of(w), (double[]){4, 5, 6, 7, 2, 4}, TN_DIMS(3, 2));
    assert_holds(tn_embedding_op(tn_detach(w), tn_scalar(1.0, TN_I32)), (double[]){2, 3},
                 TN_DIMS(2));
}

static tn_values all_three(void *user, tn_values in) {
    tn_tensor *index = user, *x = tn_mul(in.v[0], in.v[0]);
    tn_tensor *select = tn_index_select(x, 1, index), *embed = tn_embedding_op(x, index);
    tn_tensor *grid = tn_expand(tn_unsqueeze(index, 1), TN_DIMS(tn_count(index), 3));
    return (tn_values){3, {tn_square(select), tn_square(embed), tn_square(tn_gather(x, 0, grid))}};
}

TEST(gradients_twice) {
    TN_SCOPE;
    tn_tensor *index = index_of((int64_t[]){2, 0, 2, 1}, TN_DIMS(4));
    tn_values in = {1, {tn_set_requires_grad(tn_randn(TN_DIMS(3, 3), TN_F64), true)}};
    tn_gradcheck_options o = tn_gradcheck_defaults();
    o.second = true;
    tn_gradcheck(all_three, index, in, o);
    assert_string_equal(tn_error_message(), "");
}

TEST(indices_outside_are_named) {
    TN_SCOPE;
    tn_tensor *w = tn_zeros(TN_DIMS(65, 4), TN_F32),
              *index = tn_from_data((int64_t[20]){[12] = 70}, TN_DIMS(4, 5), TN_I64);
    assert_inert(tn_embedding_op(w, index), TN_EINDEX,
                 "embedding: index 70 at position 12 is outside [0, 65)");
    tn_tensor *negative = index_of((int64_t[]){0, -1}, TN_DIMS(2));
    assert_inert(tn_index_select(w, 1, negative), TN_EINDEX,
                 "index_select: index -1 at position 1 is outside [0, 4)");
    assert_inert(tn_gather(w, 1, tn_unsqueeze(negative, 0)), TN_EINDEX,
                 "gather: index -1 at position 1 is outside [0, 4)");
    assert_inert(tn_gather(w, 1, negative), TN_ESHAPE, "x is [65, 4] but index is [2]");
    assert_inert(tn_gather(w, 0, tn_zeros(TN_DIMS(1, 5), TN_I64)), TN_ESHAPE,
                 "index is larger in dimension 1");
    assert_inert(tn_index_select(w, 0, index), TN_ESHAPE, "index is [4, 5]");
    assert_inert(tn_embedding_op(tn_zeros(TN_DIMS(2), TN_F32), negative), TN_ESHAPE,
                 "weight is [2]");
    assert_inert(tn_embedding_op(w, w), TN_EDTYPE, "f32");
    assert_inert(tn_index_select(w, 2, negative), TN_EINDEX, "");
    assert_inert(tn_embedding_op(NULL, negative), TN_EVALUE, "NULL");
}

/* logits = embedding(w)[rows] w^T: both uses add to one gradient, and the embedding's part needs no
 * second (V, C). */
TEST(tied_weight) {
    TN_SCOPE;
    enum { ENTRIES = 4000, WIDTH = 64 };
    const int64_t bytes = (int64_t)ENTRIES * WIDTH * 4;
    tn_tensor *w = tn_set_requires_grad(tn_randn(TN_DIMS(ENTRIES, WIDTH), TN_F32), true);
    tn_tensor *index = index_of((int64_t[]){7, 3999, 7}, TN_DIMS(3)),
              *weight = tn_randn(TN_DIMS(3, ENTRIES), TN_F32);
    tn_tensor *loss = tn_sum_all(tn_mul(tn_linear_op(tn_embedding_op(w, index), w, NULL), weight));
    tn_device_memory_reset_peak(tn_default_device());
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    assert_int_equal(tn_backward(loss), TN_OK);
    assert_true(tn_device_memory(tn_default_device()).peak - before < bytes * 3 / 2);
    tn_tensor *a = tn_set_requires_grad(tn_copy(tn_detach(w)), true),
              *b = tn_set_requires_grad(tn_copy(tn_detach(w)), true);
    tn_backward(tn_sum_all(tn_mul(tn_linear_op(tn_embedding_op(a, index), b, NULL), weight)));
    assert_int_equal(tn_error(), TN_OK);
    assert_true(tn_all_close(tn_grad_of(w), tn_add(tn_grad_of(a), tn_grad_of(b)), 1e-5, 1e-5));
}

/* A tensor without dimensions counts as a vector of one element, as in PyTorch. */
TEST(points_as_lines) {
    TN_SCOPE;
    tn_tensor *five = tn_set_requires_grad(tn_scalar(5, TN_F64), true),
              *zero = tn_zeros(TN_DIMS(), TN_I64);
    tn_tensor *line = tn_from_data((double[]){5, 6}, TN_DIMS(2), TN_F64);
    assert_holds(tn_gather(five, 0, zero), (double[]){5}, TN_DIMS());
    assert_holds(tn_gather(five, -1, tn_zeros(TN_DIMS(2), TN_I64)), (double[]){5, 5}, TN_DIMS(2));
    assert_holds(tn_gather(line, 0, tn_ones(TN_DIMS(), TN_I64)), (double[]){6}, TN_DIMS());
    assert_inert(tn_gather(five, 1, zero), TN_EINDEX, "dimension 1");
    tn_tensor *sum = tn_scatter_add(five, 0, tn_zeros(TN_DIMS(2), TN_I64), line);
    assert_holds(sum, (double[]){16}, TN_DIMS());
    assert_holds(tn_scatter_add(line, 0, zero, five), (double[]){10, 6}, TN_DIMS(2));
    tn_backward(tn_mul(sum, tn_gather(five, 0, zero)));
    assert_float_equal(tn_item(tn_grad_of(five)), 21, 0);
}
