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

TRIAL_TEST(test_unary) {
    for (int f = 0; f < TN_UNARY_COUNT; f++) {
        for (int k = 0; k < TRIAL_SHAPES * 4 * 4; k++) {
            const int64_t *size = trial_shapes[k / 16];
            if ((k / 16 == TRIAL_SHAPES - 1 && k % 4 != f % 4) ||
                (trial_on_emulator() && k / 16 > 2 && k % 16 != f % 16)) {
                continue;
            }
            tn_dtype dtype = array_floats[k / 4 % 4];
            array x = varied_array(dtype, k & 1, 3, size, f),
                  y = make_array(dtype, k >> 1 & 1, 3, size);
            spoil_front(&x);
            elementwise e = {.f = f, .k0 = f == TN_POW_K ? 3 : -0.5, .k1 = 0.75, .x = x.d};
            trial t = {"unary", 1, {y}, call_unary, &e, dtype == TN_F64 ? 1e-15 : 1e-6, 0};
            trial_run(&t);
            trial_forget();
        }
    }
}

/* A few arguments beyond those of the polynomials, in some of a row's pieces. */
TRIAL_TEST(test_many_turns) {
    static const tn_unary turning[] = {TN_SIN, TN_COS, TN_TAN};
    static const double far[] = {0x1p20, 1048577.0, -3e9, 1e30, (double)INFINITY, (double)NAN};
    for (int k = 0; k < 3 * 6; k++) {
        array x = varied_array(TN_F32, 0, 1, SIZES(trial_on_emulator() ? 100 : 5000), k);
        array_set(&x, x.count - 3, far[k % 6]);
        elementwise e = {.f = (int)turning[k / 6], .x = x.d};
        trial t = {"turns", 1, {make_array(TN_F32, 0, 1, SIZES(x.count))}, call_unary, &e, 1e-6, 0};
        trial_run(&t);
        trial_forget();
    }
}

/* What an element becomes does not depend on its neighbours, to the bit. */
TRIAL_TEST(test_turns_alone) {
    enum { COUNT = 2500, FAR = 1030 };
    static const tn_unary turning[] = {TN_SIN, TN_COS, TN_TAN};
    for (int k = 0; k < 3 * 2; k++) {
        tn_dtype dtype = k / 3 ? TN_BF16 : TN_F32;
        array x = varied_array(dtype, DENSE, 1, SIZES(COUNT), 1),
              y = make_array(dtype, DENSE, 1, SIZES(COUNT)),
              beside = make_array(dtype, DENSE, 1, SIZES(COUNT));
        elementwise e = {.f = (int)turning[k % 3], .x = x.d};
        for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
            array_set(&x, FAR, 1);
            tn_status alone = call_unary(*t, (const tn_desc *[]){&y.d}, &e);
            assert_int_equal(trial_wait(*t, alone), TN_OK);
            array_set(&x, FAR, 0x1p21);
            tn_status together = call_unary(*t, (const tn_desc *[]){&beside.d}, &e);
            assert_int_equal(trial_wait(*t, together), TN_OK);
            for (int64_t i = 0; i < COUNT; i++) {
                assert_true(i == FAR || array_get(&y, i) == array_get(&beside, i));
            }
        }
        trial_forget();
    }
}

TRIAL_TEST(test_binary) {
    for (int f = 0; f < TN_BINARY_COUNT; f++) {
        for (int k = 0; k < TRIAL_SHAPES * 4 * 8; k++) {
            const int64_t *size = trial_shapes[k / 32];
            if ((k / 32 == TRIAL_SHAPES - 1 && k % 8 != f % 8) ||
                (trial_on_emulator() && k / 32 > 2 && k % 32 != f * 5 % 32)) {
                continue; /* the large shape: one combination of layouts for each formula */
            }
            tn_dtype dtype = array_floats[k / 8 % 4];
            array a = varied_array(dtype, k & 1, 3, size, f),
                  b = varied_array(dtype, k >> 1 & 1, 3, size, f + 1),
                  y = make_array(dtype, k >> 2 & 1, 3, size);
            spoil_front(&a);
            elementwise e = {.f = f, .a = a.d, .b = b.d};
            trial t = {"binary", 1, {y}, call_binary, &e, dtype == TN_F64 ? 1e-15 : 2e-6, 0};
            trial_run(&t);
            trial_forget();
        }
    }
}

/* A bias row, a column, a scalar; each as left and right operand. */
TRIAL_TEST(test_broadcast) {
    for (int k = 0; k < 4 * 3 * 2; k++) {
        tn_dtype dtype = array_floats[k % 4];
        int kind = k / 4 % 3;
        const int64_t size[] = {130, 257}, small[] = {kind == 0 ? 1 : 130, kind == 1 ? 1 : 257},
                      one[] = {1, 1};
        array a = varied_array(dtype, DENSE, 2, size, k),
              b = varied_array(dtype, DENSE, 2, kind == 2 ? one : small, 5),
              y = make_array(dtype, DENSE, 2, size);
        tn_desc wide = kind == 1 ? broadcast_along(&b, 1, 257) : broadcast_along(&b, 0, 130);
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

/* Input and output are the same memory. */
static tn_status call_in_place(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    tn_status status = TRIAL_CALL(t, unary, TN_GELU_TANH, out[0], out[0], 0, 0);
    return status == TN_OK ? TRIAL_CALL(t, binary, TN_ADD, out[0], &e->a, out[0]) : status;
}
TRIAL_TEST(test_in_place) {
    for (int k = 0; k < TRIAL_SHAPES * 4 * 2; k++) {
        tn_dtype dtype = array_floats[k / 2 % 4];
        array y = varied_array(dtype, k & 1, 3, trial_shapes[k / 8], 1),
              a = varied_array(dtype, DENSE, 3, trial_shapes[k / 8], 2);
        elementwise e = {.a = a.d};
        trial t = {"in place", 1, {y}, call_in_place, &e, 2e-6, step_of(dtype) * 4};
        trial_run(&t);
        trial_forget();
    }
}

TRIAL_TEST(test_compare_and_where) {
    for (int k = 0; k < TRIAL_SHAPES * TN_DTYPES * 4; k++) {
        const int64_t *size = trial_shapes[k / (TN_DTYPES * 4)];
        tn_dtype dtype = (tn_dtype)(k / 4 % TN_DTYPES);
        array a = make_array(dtype, k & 1, 3, size), b = make_array(dtype, DENSE, 3, size),
              c = make_array(TN_BOOL, k >> 1 & 1, 3, size);
        for (int64_t i = 0; i < a.count; i++) {
            array_set(&a, i, dtype == TN_BOOL ? i & 1 : (double)(i * 7 % 5));
            array_set(&b, i, dtype == TN_BOOL ? i >> 1 & 1 : (double)(i * 3 % 5));
            array_set(&c, i, i * 5 % 3 == 0);
        }
        for (int f = 0; f < TN_COMPARE_COUNT; f++) {
            array y = make_array(TN_BOOL, k >> 1 & 1, 3, size);
            elementwise e = {.f = f, .a = a.d, .b = b.d};
            trial t = {"compare", 1, {y}, call_compare, &e, 0, 0};
            trial_run(&t);
        }
        elementwise e = {.x = c.d, .a = a.d, .b = b.d};
        trial t = {"where", 1, {make_array(dtype, DENSE, 3, size)}, call_where, &e, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}

/* Every formula on i64, i32, u8 and i8, those without an integer form included (ref refuses them,
 * and so must all others). Divisors are 0 and -1 too, and some results overflow. */
TRIAL_TEST(test_integers) {
    static const tn_dtype dtypes[] = {TN_I64, TN_I32, TN_U8, TN_I8};
    static const int64_t few[] = {9, 0, -1, 2147483647, -7, 3, 1, -2147483648, 200, 2};
    for (int k = 0; k < (TN_UNARY_COUNT + TN_BINARY_COUNT) * 4 * 4; k++) {
        int f = k / 16;
        tn_dtype dtype = dtypes[k % 4];
        const int64_t size[] = {3, 7, 5};
        array a = make_array(dtype, k / 4 & 1, 3, size), b = make_array(dtype, k / 8 & 1, 3, size),
              y = make_array(dtype, k / 8 & 1, 3, size);
        for (int64_t i = 0; i < a.count; i++) {
            int64_t left = few[i % 10], right = few[i / 10 % 10];
            array_set(&a, i, (double)(dtype == TN_U8 ? left & 255 : left));
            array_set(&b, i, (double)(dtype == TN_U8 ? right & 255 : right));
        }
        elementwise e = {.f = f, .k0 = -2, .k1 = 100, .x = a.d, .a = a.d, .b = b.d};
        trial t = {"integer unary", 1, {y}, call_unary, &e, 0, 0};
        if (f >= TN_UNARY_COUNT) {
            e.f = f - TN_UNARY_COUNT;
            t.name = "integer binary";
            t.call = call_binary;
        }
        trial_run(&t);
        trial_forget();
    }
}

/* Loops beyond 31 bits are cut into pieces, here beyond 100 or 4096 elements: dense, gaps on each
 * side, a broadcast row and column, remainders after the packs. */
TRIAL_TEST(test_cut_loops) {
    static const int64_t sizes[][3] = {
        {1, 1, 5000}, {7, 30, 16}, {33, 40, 31}, {1, 1000, 8}, {5, 1, 999}};
    for (int k = 0; k < 5 * 2 * 8 && trial_on_emulator(); k++) {
        const int64_t *size = sizes[k / 16];
        tn_dtype dtype = k / 8 & 1 ? TN_BF16 : TN_F32;
        array a = varied_array(dtype, k & 1, 3, size, 1),
              row = varied_array(dtype, DENSE, 3, SIZES(1, 1, size[2]), 2),
              column = varied_array(dtype, DENSE, 3, SIZES(size[0], 1, 1), 3),
              y = make_array(dtype, k >> 1 & 1, 3, size);
        tn_desc wide = row.d;
        if (k & 4) { wide = column.d; }
        for (int d = 0; d < 3; d++) {
            wide.stride[d] = wide.size[d] == size[d] ? wide.stride[d] : 0;
            wide.size[d] = size[d];
        }
        elementwise e = {.f = TN_SUB, .a = a.d, .b = wide};
        trial t = {"cut binary", 1, {y}, call_binary, &e, 1e-6, 0};
        for (int places = 100; places <= 4096; places += 3996) {
            char text[16];
            snprintf(text, sizeof(text), "%d", places);
            setenv("TERN_EMULATOR_PLACES", text, 1);
            trial_run(&t);
        }
        unsetenv("TERN_EMULATOR_PLACES");
        trial_forget();
    }
}
