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
static void test_random(void **state) {
    (void)state;
    for (int k = 0; k < TRIAL_SHAPES * 4 * 8; k++) {
        const int64_t *size = trial_shapes[k / 32];
        tn_dtype dtype = array_floats[k / 8 % 4];
        drawing d = {(tn_random_kind[]){TN_UNIFORM, TN_NORMAL, TN_BERNOULLI, TN_UNIFORM}[k % 4],
                     {7, (uint64_t)k / 32, 0x100000002u},
                     0.25,
                     0.75,
                     {0}};
        trial t = {"random",
                   1,
                   {make(dtype, k >> 2 & 1, 3, size)},
                   call_random,
                   &d,
                   d.kind == TN_NORMAL ? 2e-6 : 0,
                   0};
        trial_run(&t);
        array x = varied(dtype, k & 1, 3, size, 1);
        d.x = x.d;
        trial drop = {"dropout", 1, {make(dtype, k >> 2 & 1, 3, size)}, call_dropout, &d, 1e-6, 0};
        trial_run(&drop);
        trial_forget();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ARRAY_TEST(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
