/* Picking rows and elements: indices out of range, a weight tied to a classifier, and tensors
 * without dimensions. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static tn_tensor *index_of(const int64_t *values, tn_dims dims) {
    return tn_from_data(values, dims, TN_I64);
}

static void assert_holds(tn_tensor *t, const double *values, tn_dims dims) {
    assert_string_equal(tn_error_message(), "");
    assert_true(tn_equal(tn_detach(t), tn_from_data(values, dims, TN_F64)));
}

TEST(indices_outside_are_named) {
    tn_tensor *w = tn_zeros(TN_DIMS(65, 4), TN_F32),
              *index = tn_from_data((int64_t[20]){[12] = 70}, TN_DIMS(4, 5), TN_I64);
    assert_inert(tn_embedding_op(w, index), TN_EINDEX,
                 "embedding: index 70 at position 12 is outside [0, 65)");
    tn_tensor *negative = index_of((int64_t[]){0, -1}, TN_DIMS(2));
    assert_inert(tn_index_select(w, 1, negative), TN_EINDEX,
                 "index_select: index -1 at position 1 is outside [0, 4)");
    assert_inert(tn_gather(w, 1, tn_unsqueeze(negative, 0)), TN_EINDEX,
                 "gather: index -1 at position 1 is outside [0, 4)");
}

/* logits = embedding(w)[rows] w^T: both uses add to one gradient, and the embedding's part needs no
 * second (V, C). */
TEST(tied_weight) {
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
