/* gather and scatter_add, by rows and along a dimension, against ref: trial.h. Sums are taken in
 * the order of the indices, so they are ref's to the bit. */
#include "trial.h"

typedef struct indexing {
    tn_desc x, index;
    int dim;
} indexing;

static tn_status call_gather_rows(const tn_backend *t, const tn_desc *const *out, void *user) {
    indexing *i = user;
    return TRIAL_CALL(t, gather_rows, out[0], &i->x, &i->index);
}
static tn_status call_scatter_rows(const tn_backend *t, const tn_desc *const *out, void *user) {
    indexing *i = user;
    return TRIAL_CALL(t, scatter_add_rows, out[0], &i->index, &i->x);
}
static tn_status call_gather(const tn_backend *t, const tn_desc *const *out, void *user) {
    indexing *i = user;
    return TRIAL_CALL(t, gather, out[0], &i->x, &i->index, i->dim);
}
static tn_status call_scatter(const tn_backend *t, const tn_desc *const *out, void *user) {
    indexing *i = user;
    return TRIAL_CALL(t, scatter_add, out[0], &i->index, &i->x, i->dim);
}

/* Indices, rows of x, elements of a row. Many indices of few rows, and more than a block sorts. */
TRIAL_TEST(test_rows) {
    static const int64_t sizes[][3] = {{0, 4, 3},      {1, 1, 1},      {50, 7, 3},
                                       {300, 20, 130}, {9, 3, 0},      {5, 40, 1},
                                       {600, 2, 257},  {5000, 300, 2}, {4096, 1, 3}};
    for (int k = 0; k < (int)(sizeof(sizes) / sizeof(*sizes)) * 16; k++) {
        const int64_t *s = sizes[k / 16];
        if (trial_on_emulator() && s[0] > 500 && k % 7 != 0) { continue; }
        tn_dtype dtype = array_floats[k / 4 % 4];
        array x = varied_array(dtype, k & 1, 2, s + 1, 1),
              src = varied_array(dtype, k & 1, 2, SIZES(s[0], s[2]), 2),
              index = make_array(k & 2 ? TN_I32 : TN_I64, k & 1, 1, s);
        for (int64_t i = 0; i < s[0]; i++) {
            array_set(&index, i, (double)(i * i % s[1]));
        }
        indexing take = {x.d, index.d, 0}, add = {src.d, index.d, 0};
        array rows = make_array(dtype, k >> 1 & 1, 2, SIZES(s[0], s[2]));
        trial t = {"gather_rows", 1, {rows}, call_gather_rows, &take, 0, 0};
        trial_run(&t);
        trial back = {"scatter_add_rows", 1, {x}, call_scatter_rows, &add, 0, 0};
        trial_run(&back);
        trial_forget();
    }
}

/* Rows that are not contiguous, and rows of one element each. */
TRIAL_TEST(test_rows_of_more_dimensions) {
    for (int k = 0; k < 4 * 2; k++) {
        tn_dtype dtype = array_floats[k % 4];
        array x = varied_array(dtype, k / 4, 3, SIZES(6, 3, 5), 1),
              src = varied_array(dtype, k / 4, 3, SIZES(20, 3, 5), 2),
              y = make_array(dtype, DENSE, 3, SIZES(20, 3, 5)),
              index = make_array(TN_I64, DENSE, 1, SIZES(20)),
              line = varied_array(dtype, k / 4, 1, SIZES(6), 1),
              add = varied_array(dtype, DENSE, 1, SIZES(20), 2);
        for (int64_t i = 0; i < 20; i++) {
            array_set(&index, i, (double)(i * 5 % 6));
        }
        indexing take = {x.d, index.d, 0}, wide = {src.d, index.d, 0}, thin = {add.d, index.d, 0};
        trial trials[] = {{"gather_rows", 1, {y}, call_gather_rows, &take, 0, 0},
                          {"scatter_add_rows", 1, {x}, call_scatter_rows, &wide, 0, 0},
                          {"scatter_add_rows", 1, {line}, call_scatter_rows, &thin, 0, 0}};
        for (int i = 0; i < 3; i++) {
            trial_run(&trials[i]);
        }
        trial_forget();
    }
}

TRIAL_TEST(test_rows_of_integers) {
    for (int k = 0; k < TN_DTYPES; k++) {
        array x = make_array((tn_dtype)k, SPREAD, 2, SIZES(6, 5)),
              index = make_array(TN_I32, DENSE, 1, SIZES(9));
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i, k == TN_BOOL ? (double)(i & 1) : (double)i);
        }
        for (int64_t i = 0; i < 9; i++) {
            array_set(&index, i, (double)(i * 5 % 6));
        }
        indexing take = {x.d, index.d, 0}, add = {x.d, index.d, 0};
        array y = make_array((tn_dtype)k, DENSE, 2, SIZES(9, 5));
        trial t = {"gather_rows", 1, {y}, call_gather_rows, &take, 0, 0};
        trial_run(&t);
        if (!tn_dtype_is_float((tn_dtype)k)) { /* refused, as by ref */
            trial refused = {"scatter_add_rows", 1, {x}, call_scatter_rows, &add, 0, 0};
            trial_run(&refused);
        }
        trial_forget();
    }
}

/* At every dimension, with an index that is shorter than x elsewhere. */
TRIAL_TEST(test_along) {
    static const int64_t sizes[][3] = {{4, 5, 6}, {1, 1, 1}, {7, 2, 300}, {3, 90, 4}};
    for (int k = 0; k < 4 * 3 * 4 * 4; k++) {
        const int64_t *size = sizes[k / 48];
        int dim = k / 16 % 3;
        tn_dtype dtype = array_floats[k / 4 % 4];
        int64_t small[3];
        for (int d = 0; d < 3; d++) {
            small[d] = d == dim             ? 2 * size[d] + 1
                       : d == (dim + 1) % 3 ? (size[d] + 1) / 2
                                            : size[d];
        }
        array x = varied_array(dtype, k & 1, 3, size, 1),
              src = varied_array(dtype, k >> 1 & 1, 3, small, 2),
              index = make_array(k & 2 ? TN_I32 : TN_I64, k & 1, 3, small);
        for (int64_t i = 0; i < index.count; i++) {
            array_set(&index, i, (double)(i * i % size[dim]));
        }
        indexing take = {x.d, index.d, dim}, add = {src.d, index.d, dim};
        array y = make_array(dtype, k >> 1 & 1, 3, small);
        trial t = {"gather", 1, {y}, call_gather, &take, 0, 0};
        trial_run(&t);
        trial back = {"scatter_add", 1, {x}, call_scatter, &add, 0, 0};
        trial_run(&back);
        trial_forget();
    }
}

/* An index out of range: TN_EINDEX with its place, as ref, and nothing outside is touched. */
TRIAL_TEST(test_bad_indices) {
    for (int k = 0; k < 4; k++) {
        int64_t bad = k & 1 ? -1 : 6;
        array x = varied_array(TN_F32, DENSE, 2, SIZES(6, 5), 1),
              y = varied_array(TN_F32, DENSE, 2, SIZES(7, 5), 2),
              rows = make_array(k & 2 ? TN_I32 : TN_I64, SPREAD, 1, SIZES(7)),
              along = make_array(k & 2 ? TN_I32 : TN_I64, SPREAD, 2, SIZES(7, 5));
        for (int64_t i = 0; i < along.count; i++) {
            array_set(&rows, i % 7, (double)(i % 7 == 3 ? bad : 1));
            array_set(&along, i, (double)(i == 17 ? bad : 1));
        }
        for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
            trial_expect_bad(*t, TRIAL_CALL(*t, gather_rows, &y.d, &x.d, &rows.d), 3, bad);
            trial_expect_bad(*t, TRIAL_CALL(*t, scatter_add_rows, &x.d, &rows.d, &y.d), 3, bad);
            trial_expect_bad(*t, TRIAL_CALL(*t, gather, &y.d, &x.d, &along.d, 0), 17, bad);
            trial_expect_bad(*t, TRIAL_CALL(*t, scatter_add, &x.d, &along.d, &y.d, 0), 17, bad);
            array_check_gaps(&x);
            array_check_gaps(&y);
        }
        trial_forget();
    }
}

/* Of several bad indices one is reported, with its value; the rest are not, and the next call is
 * not affected. */
TRIAL_TEST(test_several_bad_indices) {
    array x = varied_array(TN_F32, DENSE, 2, SIZES(6, 5), 1),
          y = varied_array(TN_F32, DENSE, 2, SIZES(300, 5), 2),
          rows = make_array(TN_I64, DENSE, 1, SIZES(300)),
          good = make_array(TN_I64, DENSE, 1, SIZES(300));
    for (int64_t i = 0; i < 300; i++) {
        array_set(&rows, i, (double)(i % 50 == 49 ? 1000 + i : i % 6));
        array_set(&good, i, (double)(i % 6));
    }
    for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
        for (int k = 0; k < 2; k++) {
            tn_status status = k ? TRIAL_CALL(*t, scatter_add_rows, &x.d, &rows.d, &y.d)
                                 : TRIAL_CALL(*t, gather_rows, &y.d, &x.d, &rows.d);
            assert_int_equal(trial_wait(*t, status), TN_EINDEX);
            int64_t position = trial_context(*t)->bad_position;
            assert_int_equal(position % 50, 49);
            assert_int_equal(trial_context(*t)->bad_value, 1000 + position);
            status = TRIAL_CALL(*t, gather_rows, &y.d, &x.d, &good.d);
            assert_int_equal(trial_wait(*t, status), TN_OK);
            array_check_gaps(&x);
            array_check_gaps(&y);
        }
    }
    trial_forget();
}
