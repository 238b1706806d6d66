/* Views: which elements they see, when reshape copies, what is refused,
 * and gradients through them. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* t has this shape and, in row-major order, these whole numbers. */
static void assert_holds(tn_tensor *t, tn_dims dims, const int *values) {
    assert_int_equal(tn_error(), TN_OK);
    assert_true(tn_dims_equal(tn_shape(t), dims));
    int64_t index[TN_MAX_DIMS] = {0}, count = tn_count(t);
    for (int64_t i = 0; i < count; i++) {
        assert_float_equal(tn_at(t, tn_dims_from(dims.ndim, index)), (double)values[i], 0.0);
        for (int d = dims.ndim - 1; d >= 0 && ++index[d] == dims.size[d]; d--) {
            index[d] = 0;
        }
    }
}
#define HOLDS(t, dims, ...) assert_holds(t, dims, (int[]){__VA_ARGS__})

static tn_tensor *make_grid(int64_t rows, int64_t columns) {
    return tn_reshape(tn_arange(0, (double)(rows * columns), 1, TN_F32), TN_DIMS(rows, columns));
}

TEST(reshape_views_where_it_can) {
    tn_tensor *x = make_grid(4, 6);
    const struct {
        tn_tensor *of;
        tn_dims to;
        bool shares;
    } cases[] = {
        {x, TN_DIMS(24), true},
        {x, TN_DIMS(2, -1), true},
        {x, TN_DIMS(2, 2, 3, 2), true},
        {tn_t(x), TN_DIMS(24), false},
        {tn_t(x), TN_DIMS(2, 3, 4), true},
        {tn_t(x), TN_DIMS(2, 3, 2, 2), true},
        {tn_t(x), TN_DIMS(3, 8), false},
        {tn_narrow(x, 1, 1, 4), TN_DIMS(4, 2, 2), true},
        {tn_narrow(x, 1, 1, 4), TN_DIMS(16), false},
        {tn_narrow(x, 0, 1, 2), TN_DIMS(12), true},
        {tn_slice(x, 1, 0, 6, 2), TN_DIMS(12), true}, /* stride 2 continues into the next row */
        {tn_slice(x, 1, 0, 5, 3), TN_DIMS(8), true},
        {tn_slice(x, 1, 0, 6, 4), TN_DIMS(8), false},
        {tn_expand(tn_narrow(x, 0, 0, 1), TN_DIMS(3, 6)), TN_DIMS(18), false},
        {tn_expand(tn_narrow(x, 1, 0, 1), TN_DIMS(4, 6)), TN_DIMS(4, 2, 3), true},
        {tn_unsqueeze(tn_t(x), 1), TN_DIMS(6, 1, 1, 4), true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_tensor *y = tn_reshape(cases[i].of, cases[i].to);
        assert_int_equal(tn_error(), TN_OK);
        if (tn_shares_storage(x, y) != cases[i].shares) {
            fail_msg("case %zu: %s as %s", i, tn_shape_text(cases[i].of), tn_shape_text(y));
        }
        /* reshaping a contiguous copy is trivial */
        tn_tensor *flat = tn_reshape(tn_copy(cases[i].of), TN_DIMS(-1));
        assert_true(tn_equal(tn_reshape(tn_copy(y), TN_DIMS(-1)), flat));
    }
}

TEST(reshape_refuses) {
    tn_tensor *x = make_grid(2, 3);
    assert_inert(tn_reshape(x, TN_DIMS(-1, 4)), TN_ESHAPE, "[-1, 4]");
    assert_inert(tn_reshape(x, TN_DIMS(-1, -1)), TN_ESHAPE, "");
    assert_inert(tn_reshape(x, TN_DIMS(-2, -3)), TN_ESHAPE, "");
    assert_inert(tn_reshape(tn_zeros(TN_DIMS(0), TN_F32), TN_DIMS(0, -1)), TN_ESHAPE, "");
    assert_inert(tn_reshape(x, TN_DIMS(1, 1, 1, 1, 1, 1, 1, 2, 3)), TN_ESHAPE, "");
}

TEST(flatten_squeeze_unsqueeze) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 1, 3, 4), TN_F32);
    assert_true(tn_dims_equal(tn_shape(tn_flatten(x, 1, 2)), TN_DIMS(2, 3, 4)));
    assert_true(tn_dims_equal(tn_shape(tn_flatten(x, 0, -1)), TN_DIMS(24)));
    assert_true(tn_dims_equal(tn_shape(tn_flatten(x, -2, -1)), TN_DIMS(2, 1, 12)));
    assert_true(tn_dims_equal(tn_shape(tn_flatten(tn_scalar(1, TN_F32), 0, -1)), TN_DIMS(1)));
    assert_true(tn_dims_equal(tn_shape(tn_squeeze(x, 1)), TN_DIMS(2, 3, 4)));
    assert_ptr_equal(tn_squeeze(x, 0), x);
    assert_true(tn_dims_equal(tn_shape(tn_unsqueeze(x, 0)), TN_DIMS(1, 2, 1, 3, 4)));
    assert_true(tn_dims_equal(tn_shape(tn_unsqueeze(x, -1)), TN_DIMS(2, 1, 3, 4, 1)));
    assert_true(tn_dims_equal(tn_shape(tn_unsqueeze(tn_scalar(1, TN_F32), 0)), TN_DIMS(1)));
    assert_inert(tn_flatten(x, 2, 1), TN_EVALUE, "first is 2 but last is 1");
    assert_inert(tn_flatten(x, 0, 4), TN_EINDEX, "");
    assert_inert(tn_squeeze(x, 4), TN_EINDEX, "");
    assert_inert(tn_unsqueeze(x, 5), TN_EINDEX, "5");
    assert_inert(tn_unsqueeze(x, -6), TN_EINDEX, "-6");
    assert_inert(tn_unsqueeze(tn_zeros(TN_DIMS(1, 1, 1, 1, 1, 1, 1, 1), TN_F32), 0), TN_ESHAPE, "");
}

TEST(order_of_dimensions) {
    tn_tensor *x = make_grid(2, 3);
    HOLDS(tn_t(x), TN_DIMS(3, 2), 0, 3, 1, 4, 2, 5);
    HOLDS(tn_transpose(x, -1, 0), TN_DIMS(3, 2), 0, 3, 1, 4, 2, 5);
    HOLDS(tn_transpose(x, 1, 1), TN_DIMS(2, 3), 0, 1, 2, 3, 4, 5);
    HOLDS(tn_permute(tn_unsqueeze(x, 0), TN_DIMS(2, 0, -2)), TN_DIMS(3, 1, 2), 0, 3, 1, 4, 2, 5);
    assert_inert(tn_permute(x, TN_DIMS(0)), TN_ESHAPE, "");
    assert_inert(tn_permute(x, TN_DIMS(0, 2)), TN_ESHAPE, "");
    assert_inert(tn_permute(x, TN_DIMS(0, -3)), TN_ESHAPE, "");
    assert_inert(tn_transpose(x, 0, 2), TN_EINDEX, "");
    assert_inert(tn_t(tn_arange(0, 3, 1, TN_F32)), TN_ESHAPE, "[3]");
}

TEST(narrow_select_slice) {
    tn_tensor *x = make_grid(3, 4);
    HOLDS(tn_narrow(x, 1, 1, 2), TN_DIMS(3, 2), 1, 2, 5, 6, 9, 10);
    HOLDS(tn_narrow(x, 0, 3, 0), TN_DIMS(0, 4), 0);
    HOLDS(tn_select(x, 0, -1), TN_DIMS(4), 8, 9, 10, 11);
    HOLDS(tn_select(x, -1, 2), TN_DIMS(3), 2, 6, 10);
    HOLDS(tn_slice(x, 1, 0, 4, 2), TN_DIMS(3, 2), 0, 2, 4, 6, 8, 10);
    HOLDS(tn_slice(x, 1, -3, 100, 2), TN_DIMS(3, 2), 1, 3, 5, 7, 9, 11);
    HOLDS(tn_slice(x, 0, -100, -1, 1), TN_DIMS(2, 4), 0, 1, 2, 3, 4, 5, 6, 7);
    HOLDS(tn_slice(x, 0, 2, 1, 1), TN_DIMS(0, 4), 0);
    HOLDS(tn_slice(x, 0, 100, INT64_MAX, INT64_MAX), TN_DIMS(0, 4), 0);
    HOLDS(tn_slice(x, 0, INT64_MIN, INT64_MAX, INT64_MAX), TN_DIMS(1, 4), 0, 1, 2, 3);
    assert_true(tn_shares_storage(x, tn_slice(x, 1, 0, 4, 3)));
    assert_inert(tn_narrow(x, 1, -1, 2), TN_EINDEX, "");
    assert_inert(tn_narrow(x, 1, 0, -1), TN_EINDEX, "");
    assert_inert(tn_narrow(x, 1, INT64_MAX, 1), TN_EINDEX, "");
    assert_inert(tn_narrow(x, 1, 1, INT64_MAX), TN_EINDEX, "");
    assert_inert(tn_select(x, 0, -4), TN_EINDEX, "");
    assert_inert(tn_select(tn_scalar(1, TN_F32), 0, 0), TN_EINDEX, "");
    assert_inert(tn_slice(x, 0, 0, 2, 0), TN_EVALUE, "step is 0");
}

TEST(expanded_views) {
    tn_tensor *x = tn_reshape(tn_arange(0, 2, 1, TN_I64), TN_DIMS(2, 1));
    HOLDS(tn_expand(x, TN_DIMS(2, 2, 3)), TN_DIMS(2, 2, 3), 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1);
    assert_int_equal(tn_stride(tn_expand(x, TN_DIMS(2, 3)), 1), 0);
    assert_inert(tn_expand(x, TN_DIMS(2)), TN_ESHAPE, "");
    assert_inert(tn_expand(x, TN_DIMS(1, 1)), TN_ESHAPE, "");
    assert_inert(tn_expand(x, TN_DIMS(2, -1)), TN_ESHAPE, "");
}

TEST(split_in_pieces) {
    tn_tensor *x = make_grid(2, 5), *piece[4];
    assert_int_equal(tn_split(x, 2, -1, piece, 4), 3);
    HOLDS(piece[0], TN_DIMS(2, 2), 0, 1, 5, 6);
    HOLDS(piece[2], TN_DIMS(2, 1), 4, 9);
    assert_null(piece[3]);
    assert_int_equal(tn_split(x, 2, 1, piece, 1), 3); /* the array holds fewer */
    assert_int_equal(tn_split(x, 9, 1, piece, 2), 1);
    HOLDS(piece[0], TN_DIMS(2, 5), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    assert_int_equal(tn_split(tn_zeros(TN_DIMS(0), TN_F32), 2, 0, piece, 1), 1);
    assert_int_equal(tn_split(x, 0, 1, piece, 2), 0);
    assert_inert(piece[1], TN_EVALUE, "split: size is 0");
    assert_int_equal(tn_split(x, 1, 2, piece, 2), 0);
    assert_inert(piece[0], TN_EINDEX, "");
    tn_tensor *inert = tn_narrow(x, 0, 5, 5);
    assert_int_equal(tn_split(inert, 1, 0, piece, 2), 0);
    assert_inert(piece[0], TN_EINDEX, "");
}

TEST(joined_tensors) {
    tn_tensor *a = make_grid(2, 2), *b = tn_t(make_grid(2, 2));
    HOLDS(tn_cat((tn_tensor *[]){a, b}, 2, 0), TN_DIMS(4, 2), 0, 1, 2, 3, 0, 2, 1, 3);
    HOLDS(tn_cat((tn_tensor *[]){a, b}, 2, -1), TN_DIMS(2, 4), 0, 1, 0, 2, 2, 3, 1, 3);
    HOLDS(tn_stack((tn_tensor *[]){a, b}, 2, 1), TN_DIMS(2, 2, 2), 0, 1, 0, 2, 2, 3, 1, 3);
    HOLDS(tn_stack((tn_tensor *[]){a, b}, 2, -1), TN_DIMS(2, 2, 2), 0, 0, 1, 2, 2, 1, 3, 3);
    HOLDS(TN_CAT(0, a, b), TN_DIMS(4, 2), 0, 1, 2, 3, 0, 2, 1, 3);
    HOLDS(TN_CAT(1, a), TN_DIMS(2, 2), 0, 1, 2, 3);
    HOLDS(TN_STACK(-1, a, b), TN_DIMS(2, 2, 2), 0, 0, 1, 2, 2, 1, 3, 3);
    HOLDS(TN_CAT(0, a, TN_CAT(0, b, a)), TN_DIMS(6, 2), 0, 1, 2, 3, 0, 2, 1, 3, 0, 1, 2, 3);
    tn_tensor *many[40]; /* more than an operation has descriptors for */
    for (int i = 0; i < 40; i++) {
        many[i] = tn_set_requires_grad(tn_full(TN_DIMS(2), i, TN_F64), true);
    }
    tn_tensor *row = tn_cat(many, 40, 0), *rows = tn_stack(many, 40, 0);
    assert_float_equal(tn_at(row, TN_DIMS(79)), 39.0, 0.0);
    assert_float_equal(tn_at(rows, TN_DIMS(38, 1)), 38.0, 0.0);
    tn_backward(
        tn_add(tn_sum_all(tn_mul(row, tn_arange(0, 80, 1, TN_F64))), tn_sum_all(tn_square(rows))));
    HOLDS(tn_grad_of(many[20]), TN_DIMS(2), 40 + 40, 41 + 40);
    assert_inert(tn_cat(NULL, 0, 0), TN_ESHAPE, "cat: no tensors");
    assert_inert(tn_stack(NULL, 0, 0), TN_ESHAPE, "stack: no tensors");
    assert_inert(tn_cat((tn_tensor *[]){a, tn_arange(0, 2, 1, TN_F32)}, 2, 0), TN_ESHAPE, "[2]");
    assert_inert(tn_cat((tn_tensor *[]){a, NULL}, 2, 0), TN_EVALUE, "");
    assert_inert(tn_cat((tn_tensor *[]){a}, 1, 2), TN_EINDEX, "");
    assert_inert(tn_stack((tn_tensor *[]){a}, 1, 3), TN_EINDEX, "");
}

TEST(copies_and_casts) {
    tn_tensor *x = make_grid(2, 3), *v = tn_t(x);
    assert_ptr_equal(tn_contiguous(x), x);
    assert_true(tn_is_contiguous(tn_contiguous(v)));
    assert_false(tn_shares_storage(tn_contiguous(v), x));
    assert_false(tn_shares_storage(tn_copy(x), x));
    assert_ptr_equal(tn_cast(x, TN_F32), x);
    assert_true(tn_shares_storage(tn_identity(x), x));
    HOLDS(tn_cast(tn_full(TN_DIMS(2), -1.9, TN_F64), TN_I32), TN_DIMS(2), -1, -1);
    HOLDS(tn_cast(tn_from_data((double[]){0.0, 0.5, NAN}, TN_DIMS(3), TN_F64), TN_BOOL), TN_DIMS(3),
          0, 1, 1);
    /* Integers have no gradient, and nothing is recorded. */
    tn_tensor *leaf = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
    assert_false(tn_requires_grad(tn_cast(leaf, TN_I64)));
    tn_backward(tn_sum_all(tn_cast(leaf, TN_F64)));
    assert_int_equal(tn_dtype_of(tn_grad_of(leaf)), TN_F32);
    HOLDS(tn_grad_of(leaf), TN_DIMS(2), 1, 1);
}

/* Slices of one tensor share the buffer of its gradient. The latest makes it (here: a select), the
 * earlier ones add to it. */
TEST(slices_add_into_one_gradient) {
    tn_tensor *x = tn_set_requires_grad(make_grid(2, 6), true), *h = tn_mul_scalar(x, 1.0),
              *piece[3];
    tn_tensor *column = tn_select(h, -1, 0);
    assert_int_equal(tn_split(h, 2, 1, piece, 3), 3);
    tn_tensor *loss =
        tn_add(tn_sum_all(tn_mul_scalar(piece[0], 2.0)), tn_sum_all(tn_mul_scalar(piece[2], 3.0)));
    loss = tn_add(loss, tn_sum_all(tn_mul_scalar(tn_slice(h, 1, 1, 6, 2), 10.0)));
    loss = tn_add(loss, tn_sum_all(tn_mul_scalar(tn_select(h, 0, 1), 100.0)));
    tn_backward(tn_add(loss, tn_sum_all(tn_mul_scalar(column, 1000.0))));
    HOLDS(tn_grad_of(x), TN_DIMS(2, 6), 1002, 12, 0, 10, 3, 13, 1102, 112, 100, 110, 103, 113);
}
