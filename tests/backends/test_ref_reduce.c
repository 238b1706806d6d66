/* ref's reductions and indexed entries against loops over coordinates written here. */
#include "kernels.h"
#include "ref.h"

/* x (3, 4, 5) reduced over the dimensions in `mask`;
 * element i of x belongs to element target of y. */
static int64_t target_of(int64_t i, int mask) {
    int64_t c[3] = {i / 20, i / 5 % 4, i % 5}, size[3] = {3, 4, 5}, target = 0;
    for (int k = 0; k < 3; k++) {
        target = mask >> k & 1 ? target : target * size[k] + c[k];
    }
    return target;
}

static array reduced_array(tn_dtype dtype, array_layout layout, int mask) {
    int64_t size[3] = {mask & 1 ? 1 : 3, mask & 2 ? 1 : 4, mask & 4 ? 1 : 5};
    return array_new(dtype, layout, 3, size);
}

ARRAY_TEST(test_reduce_floats) {
    for (int k = 0; k < 8; k++) {
        tn_dtype dtype = array_floats[k / 2];
        array x = array_new(dtype, k % 2 ? SPREAD : DENSE, 3, (int64_t[]){3, 4, 5});
        array_vary(&x, 1);
        for (int mask = 0; mask < 8; mask++) {
            for (int f = TN_SUM; f <= TN_SUM_SQUARES; f++) {
                array y = reduced_array(dtype, k % 2 ? DENSE : SPREAD, mask);
                assert_int_equal(ref->reduce(ctx, (tn_reduction)f, &y.d, &x.d), TN_OK);
                for (int64_t j = 0; j < y.count; j++) {
                    double sum = 0, squares = 0, most = -1e9, least = 1e9, n = 0, sizes = 0;
                    for (int64_t i = 0; i < 60; i++) {
                        double v = array_get(&x, i);
                        if (target_of(i, mask) == j) {
                            sum += v, squares += v * v, n++, sizes += fabs(v);
                            most = fmax(most, v), least = fmin(least, v);
                        }
                    }
                    double all[] = {sum, sum / n, most, least, squares};
                    array_expect_within(&y, j, all[f],
                                        (sizes + squares) * (dtype == TN_F64    ? 1e-15
                                                             : dtype == TN_F32  ? 1e-7
                                                             : dtype == TN_BF16 ? 0x1p-8
                                                                                : 0x1p-11));
                }
                array_check_gaps(&y);
            }
        }
    }
}

ARRAY_TEST(test_reduce_integers) {
    for (int k = 0; k < 3; k++) {
        array x = array_of(array_integers[k], 4, (double[]){200 - 100 * (k == 2), 3, 150, 90});
        array wide = array_new(TN_I64, SPREAD, 1, (int64_t[]){1}),
              y = array_new(array_integers[k], SPREAD, 1, (int64_t[]){1});
        assert_int_equal(ref->reduce(ctx, TN_SUM, &wide.d, &x.d), TN_OK);
        assert_true(array_get(&wide, 0) == 443 - 100 * (k == 2)); /* more than a u8 holds */
        assert_int_equal(ref->reduce(ctx, TN_MAX, &y.d, &x.d), TN_OK);
        assert_true(array_get(&y, 0) == (k == 2 ? 150 : 200));
        assert_int_equal(ref->reduce(ctx, TN_MIN, &y.d, &x.d), TN_OK);
        assert_true(array_get(&y, 0) == 3);
        assert_int_equal(ref->reduce(ctx, TN_MEAN, &y.d, &x.d), TN_EUNSUPPORTED);
        assert_int_equal(ref->argmax(ctx, &wide.d, &x.d, 0), TN_OK);
        assert_true(array_get(&wide, 0) == (k == 2 ? 2 : 0));
    }
    array narrow = array_of(TN_I32, 1, (double[]){0});
    assert_int_equal(ref->reduce(ctx, TN_SUM, &narrow.d, &narrow.d), TN_EUNSUPPORTED);
}

ARRAY_TEST(test_any_and_all) {
    for (int bits = 0; bits < 8; bits++) {
        array x = array_of(TN_BOOL, 3, (double[]){bits & 1, bits >> 1 & 1, bits >> 2 & 1});
        array y = array_new(TN_BOOL, SPREAD, 1, (int64_t[]){1});
        assert_int_equal(ref->reduce(ctx, TN_ANY, &y.d, &x.d), TN_OK);
        assert_true(array_get(&y, 0) == (bits != 0));
        assert_int_equal(ref->reduce(ctx, TN_ALL, &y.d, &x.d), TN_OK);
        assert_true(array_get(&y, 0) == (bits == 7));
    }
    array f = array_of(TN_F32, 1, (double[]){1});
    assert_int_equal(ref->reduce(ctx, TN_ANY, &f.d, &f.d), TN_EUNSUPPORTED);
    assert_int_equal(ref->argmax(ctx, &f.d, &f.d, 0), TN_EUNSUPPORTED);
}

ARRAY_TEST(test_reduce_nothing) {
    array x = array_new(TN_F32, DENSE, 2, (int64_t[]){2, 0}),
          y = array_new(TN_F32, SPREAD, 2, (int64_t[]){2, 1});
    assert_int_equal(ref->reduce(ctx, TN_SUM, &y.d, &x.d), TN_OK);
    assert_true(array_get(&y, 0) == 0 && array_get(&y, 1) == 0);
    assert_int_equal(ref->reduce(ctx, TN_MEAN, &y.d, &x.d), TN_OK);
    assert_true(isnan(array_get(&y, 0)) && isnan(array_get(&y, 1)));
    array none = array_new(TN_F32, DENSE, 2, (int64_t[]){0, 1});
    x = array_new(TN_F32, DENSE, 2, (int64_t[]){0, 3});
    assert_int_equal(ref->reduce(ctx, TN_SUM, &none.d, &x.d), TN_OK);
}

ARRAY_TEST(test_nan_wins) {
    for (int at = 0; at < 3; at++) {
        array x = array_of(TN_F32, 3, (double[]){1, INFINITY, -INFINITY});
        array y = array_new(TN_F32, DENSE, 1, (int64_t[]){1}),
              place = array_new(TN_I64, DENSE, 1, (int64_t[]){1});
        array_set(&x, at, NAN);
        for (int f = TN_SUM; f <= TN_SUM_SQUARES; f++) {
            assert_int_equal(ref->reduce(ctx, (tn_reduction)f, &y.d, &x.d), TN_OK);
            assert_true(isnan(array_get(&y, 0)));
        }
        assert_int_equal(ref->argmax(ctx, &place.d, &x.d, 0), TN_OK);
        assert_true(array_get(&place, 0) == at);
    }
}

ARRAY_TEST(test_first_nan) {
    array x = array_of(TN_F64, 4, (double[]){1, NAN, 7, NAN}),
          place = array_new(TN_I64, DENSE, 1, (int64_t[]){1});
    assert_int_equal(ref->argmax(ctx, &place.d, &x.d, 0), TN_OK);
    assert_true(array_get(&place, 0) == 1);
}

/* A million floats of 0.1: a running float sum is off in the third digit. */
ARRAY_TEST(test_sum_is_accurate) {
    array x = array_new(TN_F32, DENSE, 1, (int64_t[]){1}),
          y = array_new(TN_F32, DENSE, 1, (int64_t[]){1});
    array_set(&x, 0, 0.1);
    x.d.size[0] = 1000000;
    x.d.stride[0] = 0;
    ref->reduce(ctx, TN_SUM, &y.d, &x.d);
    array_expect(&y, 0, (double)0.1f * 1e6, 0.5);
}

ARRAY_TEST(test_argmax) {
    for (int k = 0; k < 4; k++) {
        array x = array_new(array_floats[k], SPREAD, 3, (int64_t[]){2, 5, 3});
        array y = array_new(TN_I64, SPREAD, 3, (int64_t[]){2, 1, 3});
        array_vary(&x, 7);
        for (int i = 0; i < 30; i += 7) { /* ties: the first wins */
            array_set(&x, i, 5);
        }
        assert_int_equal(ref->argmax(ctx, &y.d, &x.d, 1), TN_OK);
        for (int64_t n = 0; n < 6; n++) {
            int64_t best = 0, first = n / 3 * 15 + n % 3;
            for (int64_t j = 4; j >= 0; j--) {
                best = array_get(&x, first + 3 * j) >= array_get(&x, first + 3 * best) ? j : best;
            }
            assert_true(array_get(&y, n) == (double)best);
        }
        array_check_gaps(&y);
    }
}

/* ---- Indices --------------------------------------------------------------------------------- */

ARRAY_TEST(test_gather_rows) {
    for (int t = 0; t < TN_DTYPES; t++) {
        for (int wide = 0; wide < 2; wide++) {
            array x = array_new((tn_dtype)t, SPREAD, 3, (int64_t[]){4, 2, 3});
            array y = array_new((tn_dtype)t, wide ? DENSE : SPREAD, 3, (int64_t[]){5, 2, 3});
            array index = array_new(wide ? TN_I64 : TN_I32, SPREAD, 1, (int64_t[]){5});
            const int place[] = {3, 0, 3, 2, 1};
            for (int i = 0; i < 24; i++) {
                array_set(&x, i, t == TN_BOOL ? i % 3 == 0 : i);
            }
            for (int i = 0; i < 5; i++) {
                array_set(&index, i, place[i]);
            }
            assert_int_equal(ref->gather_rows(ctx, &y.d, &x.d, &index.d), TN_OK);
            for (int i = 0; i < 30; i++) {
                assert_true(array_get(&y, i) == array_get(&x, place[i / 6] * 6 + i % 6));
            }
            array_check_gaps(&y);
            array_set(&index, 3, 4);
            ctx->bad_position = ctx->bad_value = -9;
            assert_int_equal(ref->gather_rows(ctx, &y.d, &x.d, &index.d), TN_EINDEX);
            assert_true(ctx->bad_position == 3 && ctx->bad_value == 4);
            array_set(&index, 1, -1);
            assert_int_equal(ref->gather_rows(ctx, &y.d, &x.d, &index.d), TN_EINDEX);
            assert_true(ctx->bad_position == 1 && ctx->bad_value == -1);
        }
    }
    array f = array_of(TN_F32, 1, (double[]){0});
    assert_int_equal(ref->gather_rows(ctx, &f.d, &f.d, &f.d), TN_EUNSUPPORTED);
    assert_int_equal(ref->scatter_add_rows(ctx, &f.d, &f.d, &f.d), TN_EUNSUPPORTED);
    assert_int_equal(ref->gather(ctx, &f.d, &f.d, &f.d, 0), TN_EUNSUPPORTED);
}

ARRAY_TEST(test_gather) {
    for (int t = 0; t < TN_DTYPES; t++) {
        array x = array_new((tn_dtype)t, SPREAD, 3, (int64_t[]){2, 4, 3});
        array index = array_new(t % 2 ? TN_I64 : TN_I32, SPREAD, 3, (int64_t[]){2, 5, 3});
        array y = array_new((tn_dtype)t, t % 2 ? DENSE : SPREAD, 3, (int64_t[]){2, 5, 3});
        for (int i = 0; i < 24; i++) {
            array_set(&x, i, t == TN_BOOL ? i % 3 == 0 : i);
        }
        for (int i = 0; i < 30; i++) {
            array_set(&index, i, i * 7 % 4);
        }
        assert_int_equal(ref->gather(ctx, &y.d, &x.d, &index.d, 1), TN_OK);
        for (int i = 0; i < 30; i++) {
            assert_true(array_get(&y, i) == array_get(&x, i / 15 * 12 + i * 7 % 4 * 3 + i % 3));
        }
        array_check_gaps(&y);
        array_set(&index, 17, -2);
        assert_int_equal(ref->gather(ctx, &y.d, &x.d, &index.d, 1), TN_EINDEX);
        assert_true(ctx->bad_position == 17 && ctx->bad_value == -2);
    }
}

ARRAY_TEST(test_scatter_add) {
    for (int k = 0; k < 8; k++) {
        tn_dtype dtype = array_floats[k / 2];
        array y = array_new(dtype, k % 2 ? SPREAD : DENSE, 3, (int64_t[]){2, 4, 3});
        array index = array_new(k % 2 ? TN_I64 : TN_I32, SPREAD, 3, (int64_t[]){2, 5, 3});
        array src = array_new(dtype, SPREAD, 3, (int64_t[]){2, 5, 3});
        double expected[24];
        for (int i = 0; i < 24; i++) {
            array_set(&y, i, expected[i] = i);
        }
        array_vary(&src, 2);
        for (int i = 0; i < 30; i++) {
            array_set(&index, i, i * 7 % 4);
            expected[i / 15 * 12 + i * 7 % 4 * 3 + i % 3] += array_get(&src, i);
        }
        assert_int_equal(ref->scatter_add(ctx, &y.d, &index.d, &src.d, 1), TN_OK);
        for (int i = 0; i < 24; i++) {
            array_expect(&y, i, expected[i], 2);
        }
        array_check_gaps(&y);
        array_set(&index, 29, 4);
        assert_int_equal(ref->scatter_add(ctx, &y.d, &index.d, &src.d, 1), TN_EINDEX);
        assert_true(ctx->bad_position == 29 && ctx->bad_value == 4);
    }
    array n = array_of(TN_I64, 1, (double[]){0});
    assert_int_equal(ref->scatter_add(ctx, &n.d, &n.d, &n.d, 0), TN_EUNSUPPORTED);
}

ARRAY_TEST(test_scatter_add_rows) {
    for (int k = 0; k < 8; k++) {
        tn_dtype dtype = array_floats[k / 2];
        array y = array_new(dtype, k % 2 ? SPREAD : DENSE, 2, (int64_t[]){4, 3});
        array src = array_new(dtype, k % 2 ? DENSE : SPREAD, 2, (int64_t[]){6, 3});
        array index = array_of(k % 2 ? TN_I64 : TN_I32, 6, (double[]){1, 3, 1, 1, 0, 3});
        double expected[12];
        for (int i = 0; i < 12; i++) {
            array_set(&y, i, expected[i] = 0.5 * i);
        }
        array_vary(&src, 2);
        for (int i = 0; i < 18; i++) {
            expected[(int)array_get(&index, i / 3) * 3 + i % 3] += array_get(&src, i);
        }
        assert_int_equal(ref->scatter_add_rows(ctx, &y.d, &index.d, &src.d), TN_OK);
        for (int i = 0; i < 12; i++) {
            array_expect(&y, i, expected[i], 4);
        }
        array_check_gaps(&y);
        array_set(&index, 2, 4);
        assert_int_equal(ref->scatter_add_rows(ctx, &y.d, &index.d, &src.d), TN_EINDEX);
        assert_true(ctx->bad_position == 2 && ctx->bad_value == 4);
    }
}

/* 4096 times 2^-4 onto 256: added one at a time in bf16, each would be lost. */
ARRAY_TEST(test_small_floats_are_summed_in_f32) {
    array y = array_of(TN_BF16, 1, (double[]){256}), src = array_of(TN_BF16, 1, (double[]){0.0625});
    array index = array_of(TN_I64, 1, (double[]){0});
    src.d.size[0] = index.d.size[0] = 4096;
    src.d.stride[0] = index.d.stride[0] = 0;
    assert_int_equal(ref->scatter_add_rows(ctx, &y.d, &index.d, &src.d), TN_OK);
    assert_true(array_get(&y, 0) == 512);
}

static void *no_memory(tn_context *context, size_t bytes) {
    return NULL;
}

ARRAY_TEST(test_out_of_memory) {
    tn_context poor = *ctx;
    poor.workspace = no_memory;
    array y = array_of(TN_F16, 1, (double[]){2}), index = array_of(TN_I64, 1, (double[]){0});
    assert_int_equal(ref->scatter_add_rows(&poor, &y.d, &index.d, &y.d), TN_ENOMEM);
    array x = array_new(TN_F32, DENSE, 4, (int64_t[]){1, 1, 1, 1}),
          lse = array_new(TN_F32, DENSE, 3, (int64_t[]){1, 1, 1});
    tn_attention_args args = {.scale = 1};
    const tn_op *attention = tn_op_named("attention");
    const tn_op_call call = {
        .args = &args, .kernels = ref, .ctx = &poor, .x = {&x.d, &x.d, &x.d}, .y = {&x.d, &lse.d}};
    assert_int_equal(tn_op_run(attention, &call), TN_ENOMEM);
    const tn_op_back back = {.args = &args,
                             .kernels = ref,
                             .ctx = &poor,
                             .x = {&x.d, &x.d, &x.d},
                             .y = {&x.d, &lse.d},
                             .dy = {&x.d},
                             .dx = {&x.d, &x.d, &x.d}};
    assert_int_equal(tn_op_run_back(attention, &back), TN_ENOMEM);
}

ARRAY_TEST(test_index_nothing) {
    array x = array_new(TN_BF16, DENSE, 2, (int64_t[]){0, 3}),
          index = array_new(TN_I64, DENSE, 1, (int64_t[]){0});
    array src = array_new(TN_BF16, DENSE, 2, (int64_t[]){0, 3});
    assert_int_equal(ref->gather_rows(ctx, &src.d, &x.d, &index.d), TN_OK);
    assert_int_equal(ref->scatter_add_rows(ctx, &x.d, &index.d, &src.d), TN_OK);
}

int main(void) {
    return tests_run(ref_begin, NULL);
}
