/* reduce and argmax against ref: trial.h. */
#include "trial.h"

typedef struct reducing {
    tn_reduction f;
    tn_desc x;
} reducing;
static tn_status call_reduce(const tn_backend *t, const tn_desc *const *out, void *user) {
    reducing *r = user;
    return TRIAL_CALL(t, reduce, r->f, out[0], &r->x);
}

static void try_reduce(tn_reduction f, tn_dtype dtype, array_layout layout, const int64_t *size,
                       int which, bool odd) {
    int64_t small[3];
    for (int d = 0; d < 3; d++) {
        small[d] = which >> d & 1 ? 1 : size[d];
    }
    tn_dtype to = f == TN_SUM_SQUARES && which % 2 ? TN_F64 : dtype;
    array x = varied_array(dtype, layout, 3, size, which), y = make_array(to, DENSE, 3, small);
    if (odd) { spoil_front(&x); }
    if ((f == TN_MAX || f == TN_MIN) && x.count == 0 && y.count > 0) { return; }
    reducing r = {f, x.d};
    trial t = {"reduce",
               1,
               {y},
               call_reduce,
               &r,
               dtype == TN_F64 ? 1e-12 : 3e-6,
               dtype == TN_F64 ? 0 : 1e-5};
    trial_run(&t);
}

TRIAL_TEST(test_reduce) {
    static const int64_t large[][3] = {{3, 700, 40},
                                       {1, 1, 50001},
                                       {20000, 1, 3},
                                       {2, 300, 300},
                                       {5, 1, 20000},
                                       {70, 9, 50},
                                       {41, 33, 3},
                                       /* short runs of every kind: even, odd, long, of rows */
                                       {900, 4, 2},
                                       {300, 3, 7},
                                       {30, 25, 13},
                                       {500, 2, 11},
                                       {200, 12, 5},
                                       {90, 100, 1},
                                       {6, 3, 3000},
                                       {3, 2000, 4}};
    for (int f = 0; f <= TN_SUM_SQUARES; f++) {
        for (int k = 0; k < TRIAL_SHAPES * 4 * 2 * 8; k++) {
            if (trial_on_emulator() && f != TN_SUM && k % 5 > 0) {
                continue; /* every fifth: 5 is coprime to the period of a case's bits */
            }
            try_reduce((tn_reduction)f, array_floats[k / 8 % 4], k / 32 & 1, trial_shapes[k / 64],
                       k % 8, k % 3 == 0);
            trial_forget();
        }
        for (int k = 0;
             k < (int)(sizeof large / sizeof *large) * 2 * 8 && f != TN_MEAN && f != TN_MIN; k++) {
            if (trial_on_emulator() && f != TN_SUM && k % 5 > 0) { continue; }
            try_reduce((tn_reduction)f, k % 5 == 4 ? TN_BF16 : TN_F32, k / 8 & 1, large[k / 16],
                       k % 8, k % 3 == 0);
            trial_forget();
        }
    }
}

/* Windows side by side, as pooling sees them: (n, h, kernel, w, kernel) loses both kernels. */
TRIAL_TEST(test_reduce_windows) {
    static const int64_t sizes[][5] = {{3, 40, 2, 12, 2}, {2, 30, 3, 5, 3},  {5, 7, 4, 3, 1},
                                       {1, 9, 6, 2, 20},  {2, 2, 2, 700, 2}, {40, 1, 33, 2, 2}};
    static const tn_reduction folds[] = {TN_SUM, TN_MEAN, TN_MAX, TN_MIN};
    for (int k = 0; k < (int)(sizeof sizes / sizeof *sizes) * 4 * 2 * 2; k++) {
        const int64_t *size = sizes[k / 16], small[] = {size[0], size[1], 1, size[3], 1};
        array x = varied_array(k & 1 ? TN_BF16 : TN_F32, k >> 1 & 1, 5, size, k),
              y = make_array(x.d.dtype, DENSE, 5, small);
        if (k % 3 == 0) { spoil_front(&x); }
        reducing r = {folds[k / 4 % 4], x.d};
        trial t = {"reduce windows", 1, {y}, call_reduce, &r, 3e-6, 1e-5};
        trial_run(&t);
        trial_forget();
    }
}

/* Integers exactly, in 64 bits; bools, where any of nothing is false and all of nothing is true. */
TRIAL_TEST(test_reduce_whole) {
    static const tn_reduction integer[] = {TN_SUM, TN_MAX, TN_MIN}, truth[] = {TN_ANY, TN_ALL};
    for (int k = 0; k < TRIAL_SHAPES * 2 * 8 * 14; k++) {
        const int64_t *size = trial_shapes[k / 224];
        int which = k % 8, kind = k / 16 % 14;
        tn_dtype dtype = kind < 12 ? array_integers[kind / 3] : TN_BOOL;
        tn_reduction f = kind < 12 ? integer[kind % 3] : truth[kind - 12];
        int64_t small[3];
        for (int d = 0; d < 3; d++) {
            small[d] = which >> d & 1 ? 1 : size[d];
        }
        array x = make_array(dtype, k >> 3 & 1, 3, size),
              y = make_array(f == TN_SUM ? TN_I64 : dtype, DENSE, 3, small);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i,
                      dtype == TN_BOOL ? (i * 7 % 11 == 0) == (f == TN_ANY)
                                       : (double)(i * 37 % 101 - (dtype == TN_U8 ? 0 : 50)));
        }
        bool asked = (f != TN_MAX && f != TN_MIN) || x.count > 0 || y.count == 0;
        reducing r = {f, x.d};
        trial t = {"reduce", 1, {y}, call_reduce, &r, 0, 0};
        if (asked) { trial_run(&t); }
        trial_forget();
    }
}

/* A million times 0.1: the table promises about log(n) roundings, 20 of 2^-24 of the sum or 0.12.
 * Adding one by one in f32 is off by 1034. */
TRIAL_TEST(test_sum_is_accurate) {
    const int64_t n = 1 << 20;
    for (int columns = 0; columns < 2; columns++) {
        array x = make_array(TN_F32, DENSE, 2, columns ? SIZES(n, 1) : SIZES(1, n)),
              y = make_array(TN_F32, DENSE, 2, SIZES(1, 1));
        for (int64_t i = 0; i < n; i++) {
            ((float *)x.d.data)[i] = 0.1f;
        }
        for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
            tn_status status = TRIAL_CALL(*t, reduce, TN_SUM, &y.d, &x.d);
            assert_int_equal(trial_wait(*t, status), TN_OK);
            assert_true(fabs(array_get(&y, 0) - (double)n * (double)0.1f) < 0.05);
        }
    }
}

/* Three million times 0.1 in f64, along rows and columns: one by one the sum is off by 6.5e-12 of
 * itself. */
TRIAL_TEST(test_f64_sums_are_accurate) {
    static const tn_reduction f[] = {TN_SUM, TN_MEAN, TN_SUM_SQUARES};
    const int64_t n = trial_on_emulator() ? 300000 : 3000000;
    for (int columns = 0; columns < 2; columns++) {
        array x = make_array(TN_F64, DENSE, 2, columns ? SIZES(n, 1) : SIZES(1, n)),
              y = make_array(TN_F64, DENSE, 2, SIZES(1, 1));
        for (int64_t i = 0; i < n; i++) {
            ((double *)x.d.data)[i] = 0.1;
        }
        const double expected[] = {(double)n * 0.1, 0.1, (double)n * (0.1 * 0.1)};
        for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
            for (int i = 0; i < 3; i++) {
                tn_status status = TRIAL_CALL(*t, reduce, f[i], &y.d, &x.d);
                assert_int_equal(trial_wait(*t, status), TN_OK);
                assert_true(fabs(array_get(&y, 0) / expected[i] - 1) < 3e-15);
            }
        }
    }
}

/* Reductions that only losses and collectives have: refused, nothing written.
 */
TRIAL_TEST(test_not_for_kernels) {
    static const tn_reduction f[] = {TN_PRODUCT, TN_NONE, (tn_reduction)99};
    static const tn_dtype dtype[] = {TN_F32, TN_F64, TN_BF16, TN_I64, TN_BOOL};
    for (int k = 0; k < 3 * 5; k++) {
        array x = make_array(dtype[k % 5], DENSE, 2, SIZES(2, 3)),
              y = make_array(dtype[k % 5], DENSE, 2, SIZES(2, 1));
        array_set(&y, 0, 1);
        array_set(&y, 1, 1);
        for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
            tn_status status = TRIAL_CALL(*t, reduce, f[k / 5], &y.d, &x.d);
            assert_int_equal(trial_wait(*t, status), TN_EUNSUPPORTED);
            assert_true(array_get(&y, 0) == 1 && array_get(&y, 1) == 1);
        }
        trial_forget();
    }
}

typedef struct finding {
    int dim;
    tn_desc x;
} finding;
static tn_status call_argmax(const tn_backend *t, const tn_desc *const *out, void *user) {
    finding *f = user;
    return TRIAL_CALL(t, argmax, out[0], &f->x, f->dim);
}

/* Values repeat, so the first of equal ones is expected; a NaN counts as the largest. */
TRIAL_TEST(test_argmax) {
    static const int64_t sizes[][3] = {{0, 3, 2},    {1, 1, 1},   {3, 5, 7},
                                       {2, 3, 1030}, {700, 2, 3}, {1, 2, 9001}};
    for (int k = 0; k < 6 * 7 * 3 * 2; k++) {
        const int64_t *size = sizes[k / 42];
        tn_dtype dtype = (tn_dtype)(k / 6 % 7);
        int dim = k / 2 % 3;
        int64_t small[3] = {size[0], size[1], size[2]};
        small[dim] = 1;
        if (size[dim] == 0) { continue; }
        array x = make_array(dtype, k & 1, 3, size);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i, (double)(i * 37 % 101));
        }
        if (x.count > 9000) { /* at the end and the beginning of a band; of two, the first */
            array_set(&x, 8191, 103);
            array_set(&x, 8999, 103);
            array_set(&x, 9001 + 4096, 103);
        }
        if (tn_dtype_is_float(dtype) && k % 3 == 0) { spoil_front(&x); }
        finding f = {dim, x.d};
        trial t = {"argmax", 1, {make_array(TN_I64, k & 1, 3, small)}, call_argmax, &f, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}
