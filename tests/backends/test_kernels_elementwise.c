/* unary, binary, compare and where against ref: trial.h. */
#include "trial.h"

typedef struct elementwise {
    int f;
    double k0, k1;
    tn_desc x, a, b;
} elementwise;

static tn_status call_unary(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return TRIAL_CALL(t, unary, (tn_unary)e->f, out[0], &e->x, e->k0, e->k1);
}
static tn_status call_binary(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return TRIAL_CALL(t, binary, (tn_binary)e->f, out[0], &e->a, &e->b);
}
static tn_status call_compare(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return TRIAL_CALL(t, compare, (tn_compare)e->f, out[0], &e->a, &e->b);
}
static tn_status call_where(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return TRIAL_CALL(t, where, out[0], &e->x, &e->a, &e->b);
}

static void test_unary(void **state) {
    (void)state;
    for (int f = 0; f < TN_UNARY_COUNT; f++) {
        for (int k = 0; k < TRIAL_SHAPES * 4 * 4; k++) {
            const int64_t *size = trial_shapes[k / 16];
            if (k / 16 == TRIAL_SHAPES - 1 && k % 4 != f % 4) {
                continue;
            }
            tn_dtype dtype = array_floats[k / 4 % 4];
            array x = varied(dtype, k & 1, 3, size, f), y = make(dtype, k >> 1 & 1, 3, size);
            spoil(&x);
            elementwise e = {.f = f, .k0 = f == TN_POW_K ? 3 : -0.5, .k1 = 0.75, .x = x.d};
            trial t = {"unary", 1, {y}, call_unary, &e, dtype == TN_F64 ? 1e-15 : 1e-6, 0};
            trial_run(&t);
            trial_forget();
        }
    }
}

static void test_binary(void **state) {
    (void)state;
    for (int f = 0; f < TN_BINARY_COUNT; f++) {
        for (int k = 0; k < TRIAL_SHAPES * 4 * 8; k++) {
            const int64_t *size = trial_shapes[k / 32];
            if (k / 32 == TRIAL_SHAPES - 1 && k % 8 != f % 8) {
                continue; /* of the large shape one combination of layouts for each formula */
            }
            tn_dtype dtype = array_floats[k / 8 % 4];
            array a = varied(dtype, k & 1, 3, size, f),
                  b = varied(dtype, k >> 1 & 1, 3, size, f + 1),
                  y = make(dtype, k >> 2 & 1, 3, size);
            spoil(&a);
            elementwise e = {.f = f, .a = a.d, .b = b.d};
            trial t = {"binary", 1, {y}, call_binary, &e, dtype == TN_F64 ? 1e-15 : 2e-6, 0};
            trial_run(&t);
            trial_forget();
        }
    }
}

/* A bias row, a column, a scalar; each as left and right operand. */
static void test_broadcast(void **state) {
    (void)state;
    for (int k = 0; k < 4 * 3 * 2; k++) {
        tn_dtype dtype = array_floats[k % 4];
        int kind = k / 4 % 3;
        const int64_t size[] = {130, 257}, small[] = {kind == 0 ? 1 : 130, kind == 1 ? 1 : 257},
                      one[] = {1, 1};
        array a = varied(dtype, DENSE, 2, size, k),
              b = varied(dtype, DENSE, 2, kind == 2 ? one : small, 5),
              y = make(dtype, DENSE, 2, size);
        tn_desc wide = kind == 1 ? broadcast(&b, 1, 257) : broadcast(&b, 0, 130);
        if (kind == 2) {
            wide.size[1] = 257;
            wide.stride[1] = 0;
        }
        elementwise e = {.f = TN_SUB, .a = k < 12 ? a.d : wide, .b = k < 12 ? wide : a.d};
        trial t = {"broadcast binary", 1, {y}, call_binary, &e, 1e-6, 0};
        trial_run(&t);
        trial_forget();
    }
}

/* Input and output are one memory. */
static tn_status call_in_place(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    tn_status status = TRIAL_CALL(t, unary, TN_GELU_TANH, out[0], out[0], 0, 0);
    return status == TN_OK ? TRIAL_CALL(t, binary, TN_ADD, out[0], &e->a, out[0]) : status;
}
static void test_in_place(void **state) {
    (void)state;
    for (int k = 0; k < TRIAL_SHAPES * 4 * 2; k++) {
        tn_dtype dtype = array_floats[k / 2 % 4];
        array y = varied(dtype, k & 1, 3, trial_shapes[k / 8], 1),
              a = varied(dtype, DENSE, 3, trial_shapes[k / 8], 2);
        elementwise e = {.a = a.d};
        trial t = {"in place", 1, {y}, call_in_place, &e, 2e-6, step_of(dtype) * 4};
        trial_run(&t);
        trial_forget();
    }
}

static void test_compare_and_where(void **state) {
    (void)state;
    for (int k = 0; k < TRIAL_SHAPES * TN_DTYPES * 4; k++) {
        const int64_t *size = trial_shapes[k / (TN_DTYPES * 4)];
        tn_dtype dtype = (tn_dtype)(k / 4 % TN_DTYPES);
        array a = make(dtype, k & 1, 3, size), b = make(dtype, DENSE, 3, size),
              c = make(TN_BOOL, k >> 1 & 1, 3, size);
        for (int64_t i = 0; i < a.count; i++) {
            array_set(&a, i, dtype == TN_BOOL ? i & 1 : (double)(i * 7 % 5));
            array_set(&b, i, dtype == TN_BOOL ? i >> 1 & 1 : (double)(i * 3 % 5));
            array_set(&c, i, i * 5 % 3 == 0);
        }
        for (int f = 0; f < TN_COMPARE_COUNT; f++) {
            array y = make(TN_BOOL, k >> 1 & 1, 3, size);
            elementwise e = {.f = f, .a = a.d, .b = b.d};
            trial t = {"compare", 1, {y}, call_compare, &e, 0, 0};
            trial_run(&t);
        }
        elementwise e = {.x = c.d, .a = a.d, .b = b.d};
        trial t = {"where", 1, {make(dtype, DENSE, 3, size)}, call_where, &e, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ARRAY_TEST(test_unary),
        ARRAY_TEST(test_binary),
        ARRAY_TEST(test_broadcast),
        ARRAY_TEST(test_in_place),
        ARRAY_TEST(test_compare_and_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
