/* random and dropout against ref: trial.h. */
#include "trial.h"

typedef struct drawing {
    tn_random_kind kind;
    tn_random_key key;
    double a, b;
    tn_desc x;
} drawing;
static tn_status call_random(const tn_backend *t, const tn_desc *const *out, void *user) {
    drawing *d = user;
    return TRIAL_CALL(t, random, out[0], d->kind, d->key, d->a, d->b);
}
static tn_status call_dropout(const tn_backend *t, const tn_desc *const *out, void *user) {
    drawing *d = user;
    return TRIAL_CALL(t, dropout, out[0], &d->x, d->a, d->key);
}
TRIAL_TEST(test_random) {
    for (int k = 0; k < TRIAL_SHAPES * 4 * 8; k++) {
        const int64_t *size = trial_shapes[k / 32];
        tn_dtype dtype = array_floats[k / 8 % 4];
        drawing d = {(tn_random_kind[]){TN_UNIFORM, TN_NORMAL, TN_BERNOULLI, TN_UNIFORM}[k % 4],
                     {7, (uint64_t)k / 32, 0x100000002u, 4 * (uint64_t)(k % 3)},
                     0.25,
                     0.75,
                     {0}};
        array x = varied_array(dtype, k & 1, 3, size, 1),
              y = make_array(dtype, k >> 2 & 1, 3, size);
        trial t = {"random", 1, {y}, call_random, &d, d.kind == TN_NORMAL ? 2e-6 : 0, 0};
        trial_run(&t);
        d.x = x.d;
        trial drop = {"dropout", 1, {y}, call_dropout, &d, 0, 0};
        trial_run(&drop);
        trial_forget();
    }
}

/* An element's place in memory changes no bit of it. */
TRIAL_TEST(test_layouts) {
    for (int k = 0; k < TRIAL_SHAPES * 4 * 4; k++) {
        const int64_t *size = trial_shapes[k / 16];
        drawing d = {(tn_random_kind[]){TN_UNIFORM, TN_NORMAL, TN_BERNOULLI, TN_UNIFORM}[k % 4],
                     {9, (uint64_t)k, 3, 8},
                     0.3,
                     0.9,
                     {0}};
        array dense = make_array(array_floats[k / 4 % 4], ROW_MAJOR, 3, size),
              spread = make_array(array_floats[k / 4 % 4], SPREAD, 3, size);
        for (const tn_backend *const *t = trial_tables(); *t; t++) {
            tn_status one = call_random(*t, (const tn_desc *[]){&dense.d}, &d),
                      other = call_random(*t, (const tn_desc *[]){&spread.d}, &d);
            assert_int_equal(trial_wait(*t, one), TN_OK);
            assert_int_equal(trial_wait(*t, other), TN_OK);
            for (int64_t i = 0; i < dense.count; i++) {
                assert_true(array_get(&dense, i) == array_get(&spread, i));
            }
        }
        trial_forget();
    }
}

/* Ranges whose upper end rounding would reach. */
TRIAL_TEST(test_upper_ends) {
    static const double ranges[][2] = {{0, 1}, {1, 2}, {-2, -1}, {0x1p23, 0x1p23 + 4}, {3, 3}};
    for (int k = 0; k < 4 * 2 * 5; k++) {
        tn_dtype dtype = array_floats[k / 10];
        drawing d = {TN_UNIFORM, {7, 1, 2, 0}, ranges[k % 5][0], ranges[k % 5][1], {0}};
        trial t = {"uniform",
                   1,
                   {make_array(dtype, k / 5 & 1, 1, SIZES(trial_on_emulator() ? 3000 : 20000))},
                   call_random,
                   &d,
                   0,
                   0};
        trial_run(&t);
        trial_forget();
    }
}

/* Ranges around 0, of one integer, of a whole dtype, beyond 32 bits; floats and bool are refused,
 * as by ref. */
TRIAL_TEST(test_integers) {
    static const double ranges[][2] = {
        {-3, 5}, {7, 8}, {0, 256}, {-0x1p31, 0x1p31}, {-0x1p62, 0x1p62}};
    for (int k = 0; k < TRIAL_SHAPES * TN_DTYPES * 2 * 5; k++) {
        tn_dtype dtype = (tn_dtype)(k / 10 % TN_DTYPES);
        const double *range = ranges[k % 5];
        drawing d = {TN_INTEGER, {(uint64_t)k, 3, 9, (uint64_t)k << 30}, range[0], range[1], {0}};
        array y = make_array(dtype, k / 5 & 1, 3, trial_shapes[k / 10 / TN_DTYPES]);
        trial t = {"random integers", 1, {y}, call_random, &d, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}
