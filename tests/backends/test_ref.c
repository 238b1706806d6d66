/* ref where PyTorch does not judge it: integers, conversions, refusals, no memory, and what no
 * operation asks of its kernels.
 *
 * The rest: tests/ops/test_torch.py runs each operation's samples by ref, forward and backward, in
 * every float dtype and layout. Trials (trial.h) compare ref with the fast kernels, and check that
 * it leaves gaps alone. */
#include "kernels.h"
#include "ref.h"

#define LIKE(a) array_new((a).d.dtype, SPREAD, (a).d.ndim, (a).d.size)

/* An i64 of any value, and what it becomes. */
static array integer_of(tn_dtype dtype, int64_t value) {
    array wide = array_new(TN_I64, DENSE, 0, NULL), a = array_new(dtype, DENSE, 0, NULL);
    *(int64_t *)wide.d.data = value;
    assert_int_equal(ref->copy(ctx, &a.d, &wide.d), TN_OK);
    return a;
}

static int64_t integer_in(const array *a) {
    array wide = array_new(TN_I64, DENSE, 0, NULL);
    assert_int_equal(ref->copy(ctx, &wide.d, &a->d), TN_OK);
    return *(int64_t *)wide.d.data;
}

/* ---- Integers -------------------------------------------------------------------------------- */

/* Division rounds towards zero, by 0 it gives 0; overflow wraps. */
enum { CASES = 6 };
static const int64_t left[CASES] = {7, -7, -7, -7, INT64_MIN, 6};
static const int64_t right[CASES] = {2, 2, -2, 0, -1, -3};
static const struct {
    tn_binary f;
    int64_t y[CASES];
} pairs[] = {
    {TN_ADD, {9, -5, -9, -7, INT64_MAX, 3}},    {TN_SUB, {5, -9, -5, -7, INT64_MIN + 1, 9}},
    {TN_MUL, {14, -14, 14, 0, INT64_MIN, -18}}, {TN_DIV, {3, -3, 3, 0, INT64_MIN, -2}},
    {TN_MAXIMUM, {7, 2, -2, 0, -1, 6}},         {TN_MINIMUM, {2, -7, -7, -7, INT64_MIN, -3}},
    {TN_FMOD, {1, -1, -1, -7, 0, 0}},           {TN_REMAINDER, {1, 1, -1, -7, 0, 0}}};

/* With the constants 3 and 50. */
static const int64_t single[CASES] = {7, -7, 0, 100, INT64_MIN, 50};
static const struct {
    tn_unary f;
    int64_t y[CASES];
} singles[] = {{TN_NEG, {-7, 7, 0, -100, INT64_MIN, -50}},
               {TN_ABS, {7, 7, 0, 100, INT64_MIN, 50}},
               {TN_SIGN, {1, -1, 0, 1, -1, 1}},
               {TN_SQUARE, {49, 49, 0, 10000, 0, 2500}},
               {TN_RELU, {7, 0, 0, 100, 0, 50}},
               {TN_ADD_K, {10, -4, 3, 103, INT64_MIN + 3, 53}},
               {TN_MUL_K, {21, -21, 0, 300, INT64_MIN, 150}},
               {TN_SUB_K, {4, -10, -3, 97, INT64_MAX - 2, 47}},
               {TN_RSUB_K, {-4, 10, 3, -97, INT64_MIN + 3, -47}},
               {TN_CLAMP_K, {7, 3, 3, 50, 3, 50}}};

ARRAY_TEST(test_integers) {
    bool has[TN_BINARY_COUNT] = {false}, has_one[TN_UNARY_COUNT] = {false};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs * CASES; i++) {
        tn_binary f = pairs[i / CASES].f;
        array a = integer_of(TN_I64, left[i % CASES]), b = integer_of(TN_I64, right[i % CASES]);
        assert_int_equal(ref->binary(ctx, f, &a.d, &a.d, &b.d), TN_OK);
        assert_int_equal(integer_in(&a), pairs[i / CASES].y[i % CASES]);
        has[f] = true;
    }
    for (size_t i = 0; i < sizeof singles / sizeof *singles * CASES; i++) {
        tn_unary f = singles[i / CASES].f;
        array x = integer_of(TN_I64, single[i % CASES]);
        assert_int_equal(ref->unary(ctx, f, &x.d, &x.d, 3, 50), TN_OK);
        assert_int_equal(integer_in(&x), singles[i / CASES].y[i % CASES]);
        has_one[f] = true;
    }
    array n = integer_of(TN_I32, 7), flag = integer_of(TN_BOOL, 1);
    for (int f = 0; f < TN_BINARY_COUNT; f++) {
        tn_status status = has[f] ? TN_OK : TN_EUNSUPPORTED;
        assert_int_equal(ref->binary(ctx, (tn_binary)f, &n.d, &n.d, &n.d), status);
        assert_int_equal(ref->binary(ctx, (tn_binary)f, &flag.d, &flag.d, &flag.d),
                         TN_EUNSUPPORTED);
    }
    for (int f = 0; f < TN_UNARY_COUNT; f++) {
        tn_status status = has_one[f] ? TN_OK : TN_EUNSUPPORTED;
        assert_int_equal(ref->unary(ctx, (tn_unary)f, &n.d, &n.d, 3, 50), status);
        assert_int_equal(ref->unary(ctx, (tn_unary)f, &flag.d, &flag.d, 3, 50), TN_EUNSUPPORTED);
    }
}

/* Results are cut to the dtype's width. */
ARRAY_TEST(test_narrow_integers) {
    static const int64_t squares[] = {40000, 40000, 64, 64}; /* of 200, which is -56 as i8 */
    for (int k = 0; k < 4; k++) {
        array n = integer_of(array_integers[k], 200);
        assert_int_equal(ref->binary(ctx, TN_MUL, &n.d, &n.d, &n.d), TN_OK);
        assert_int_equal(integer_in(&n), squares[k]);
        assert_int_equal(ref->unary(ctx, TN_SUB_K, &n.d, &n.d, 65, 0), TN_OK);
        assert_int_equal(integer_in(&n), k < 2 ? 39935 : k == 2 ? 255 : -1);
    }
}

ARRAY_TEST(test_reduced_integers) {
    for (int k = 0; k < 4; k++) {
        array x = array_of(array_integers[k], 4, (double[]){100, 3, 120, 90}),
              sum = integer_of(TN_I64, 0), y = array_of(array_integers[k], 1, (double[]){0});
        sum.d = (tn_desc){sum.d.data, TN_I64, 1, {1}, {1}};
        assert_int_equal(ref->reduce(ctx, TN_SUM, &sum.d, &x.d), TN_OK);
        assert_true(array_get(&sum, 0) == 313); /* more than a byte holds */
        assert_int_equal(ref->argmax(ctx, &sum.d, &x.d, 0), TN_OK);
        assert_true(array_get(&sum, 0) == 2);
        assert_int_equal(ref->reduce(ctx, TN_MAX, &y.d, &x.d), TN_OK);
        assert_true(array_get(&y, 0) == 120);
        assert_int_equal(ref->reduce(ctx, TN_MIN, &y.d, &x.d), TN_OK);
        assert_true(array_get(&y, 0) == 3);
        assert_int_equal(ref->reduce(ctx, TN_MEAN, &y.d, &x.d), TN_EUNSUPPORTED);
        assert_int_equal(ref->reduce(ctx, TN_ANY, &y.d, &x.d), TN_EUNSUPPORTED);
    }
}

/* ---- Every dtype ----------------------------------------------------------------------------- */

/* Every pair of dtypes, on values that all of them hold. */
ARRAY_TEST(test_copy) {
    const double values[] = {0, 1, 2, 100, 127, 7};
    for (int k = 0; k < TN_DTYPES * TN_DTYPES; k++) {
        tn_dtype from = (tn_dtype)(k / TN_DTYPES), to = (tn_dtype)(k % TN_DTYPES);
        bool flag = from == TN_BOOL || to == TN_BOOL;
        array x = array_of(from, 6, values), y = array_new(to, SPREAD, 1, (int64_t[]){6});
        for (int64_t i = 0; i < 6 && from == TN_BOOL; i++) {
            array_set(&x, i, values[i] != 0);
        }
        assert_int_equal(ref->copy(ctx, &y.d, &x.d), TN_OK);
        for (int64_t i = 0; i < 6; i++) {
            assert_true(array_get(&y, i) == (flag ? values[i] != 0 : values[i]));
        }
    }
}

/* Floats are cut to integers, and what is too large to the largest; NaN is 0, but true. */
ARRAY_TEST(test_copy_rounds) {
    static const double values[] = {-2.7, 2.7, NAN, INFINITY, -INFINITY, 1e300, -1.5, 0.3};
    static const int64_t whole[] = {-2, 2, 0, INT64_MAX, INT64_MIN, INT64_MAX, -1, 0};
    for (int i = 0; i < 8; i++) {
        array x = array_new(TN_F64, DENSE, 0, NULL), n = integer_of(TN_I64, 9),
              flag = integer_of(TN_BOOL, 0), byte = integer_of(TN_U8, 9);
        array_set(&x, 0, values[i]);
        assert_int_equal(ref->copy(ctx, &n.d, &x.d), TN_OK);
        assert_int_equal(ref->copy(ctx, &flag.d, &x.d), TN_OK);
        assert_int_equal(ref->copy(ctx, &byte.d, &x.d), TN_OK);
        assert_int_equal(integer_in(&n), whole[i]);
        assert_int_equal(integer_in(&flag), 1);
        assert_int_equal(integer_in(&byte), (uint8_t)whole[i]);
    }
    /* just above the midpoint of two floats; by way of double it would round down to even */
    array big = integer_of(TN_I64, (INT64_C(1) << 54) + (INT64_C(1) << 30) + 1);
    array f = array_new(TN_F32, DENSE, 0, NULL);
    assert_int_equal(ref->copy(ctx, &f.d, &big.d), TN_OK);
    assert_true(array_get(&f, 0) == 0x1p54 + 0x1p31);
}

ARRAY_TEST(test_every_dtype) {
    const double one[] = {0, 1, 1, 0}, other[] = {0, 1, 0, 1};
    for (int t = 0; t < TN_DTYPES; t++) {
        tn_dtype dtype = (tn_dtype)t;
        array b = array_of(dtype, 4, other), a = LIKE(b), y = LIKE(b),
              c = array_of(TN_BOOL, 4, (double[]){0, 0, 77, 0}); /* any byte but 0 is true */
        for (int i = 0; i < 4; i++) {
            array_set(&a, i, one[i]);
        }
        assert_int_equal(ref->where(ctx, &y.d, &c.d, &a.d, &b.d), TN_OK);
        for (int i = 0; i < 4; i++) {
            assert_true(array_get(&y, i) == (i == 2 ? one[i] : other[i]));
        }
        for (int f = 0; f < TN_COMPARE_COUNT; f++) {
            assert_int_equal(ref->compare(ctx, (tn_compare)f, &c.d, &a.d, &b.d), TN_OK);
            for (int i = 0; i < 4; i++) {
                double u = one[i], v = other[i];
                bool expected[] = {u == v, u != v, u<v, u <= v, u> v, u >= v};
                assert_true(array_get(&c, i) == expected[f]);
            }
        }
        assert_int_equal(ref->fill(ctx, &y.d, 3.0), TN_OK);
        assert_true(array_get(&y, 3) == (t == TN_BOOL ? 1 : 3));
        assert_int_equal(ref->arange(ctx, &y.d, 2, 0.5), t == TN_BOOL ? TN_EUNSUPPORTED : TN_OK);
        assert_true(t == TN_BOOL || array_get(&y, 2) == 3);
        assert_true(t == TN_BOOL || array_get(&y, 3) == (tn_dtype_is_float(dtype) ? 3.5 : 3));
    }
    array flag = integer_of(TN_BOOL, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ref->fill(ctx, &flag.d, 0.25 * i), TN_OK);
        assert_int_equal(integer_in(&flag), i);
    }
}

/* ---- Refusals -------------------------------------------------------------------------------- */

ARRAY_TEST(test_refused_dtypes) {
    array f = array_of(TN_F32, 1, (double[]){0}), n = array_of(TN_I32, 1, (double[]){0});
    array m = array_new(TN_I32, DENSE, 3, (int64_t[]){1, 1, 1});
    const tn_status given[] = {ref->compare(ctx, TN_EQ, &f.d, &f.d, &f.d),
                               ref->where(ctx, &f.d, &f.d, &f.d, &f.d),
                               ref->reduce(ctx, TN_SUM, &n.d, &n.d),
                               ref->reduce(ctx, TN_ANY, &f.d, &f.d),
                               ref->argmax(ctx, &f.d, &f.d, 0),
                               ref->gather_rows(ctx, &f.d, &f.d, &f.d),
                               ref->scatter_add_rows(ctx, &f.d, &f.d, &f.d),
                               ref->scatter_add_rows(ctx, &n.d, &n.d, &n.d),
                               ref->gather(ctx, &f.d, &f.d, &f.d, 0),
                               ref->scatter_add(ctx, &n.d, &n.d, &n.d, 0),
                               ref->matmul(ctx, &m.d, &m.d, &m.d, 1, 0),
                               ref->linear(ctx, &m.d, &m.d, &m.d, NULL)};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        assert_int_equal(given[i], TN_EUNSUPPORTED);
    }
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

/* Spans of different dtypes in one step; an empty one; and a dtype that is refused before anything
 * is written. */
ARRAY_TEST(test_spans) {
    float a = 1, grad = 0.5;
    double b = 2, wide = 0.25;
    const tn_optim_span first = {.param = &a,
                                 .param_dtype = TN_F32,
                                 .grad = &grad,
                                 .grad_dtype = TN_F32,
                                 .count = 1},
                        last = {.param = &b,
                                .param_dtype = TN_F64,
                                .grad = &wide,
                                .grad_dtype = TN_F64,
                                .count = 1},
                        empty = {.param_dtype = TN_F32, .grad_dtype = TN_F32};
    tn_optim_span whole = first;
    whole.param_dtype = TN_I32;
    const tn_step step = {.rule = TN_STEP_SGD, .lr = 0.5, .shrink = 1, .grad_scale = 1};
    assert_int_equal(ref->step(ctx, (tn_optim_span[]){first, whole}, 2, &step), TN_EUNSUPPORTED);
    assert_true(a == 1);
    assert_int_equal(ref->step(ctx, (tn_optim_span[]){first, empty, last}, 3, &step), TN_OK);
    assert_true(a == 0.75 && b == 1.875);
    assert_int_equal(ref->step(ctx, NULL, 0, &step), TN_OK);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* 4096 times 2^-4 onto 256: added one at a time in bf16, each would be lost. */
ARRAY_TEST(test_small_floats_are_summed_in_f32) {
    array y = array_of(TN_BF16, 1, (double[]){256}), src = array_of(TN_BF16, 1, (double[]){0.0625});
    array index = array_of(TN_I64, 1, (double[]){0});
    src.d.size[0] = index.d.size[0] = 4096;
    src.d.stride[0] = index.d.stride[0] = 0;
    assert_int_equal(ref->scatter_add_rows(ctx, &y.d, &index.d, &src.d), TN_OK);
    assert_true(array_get(&y, 0) == 512);
}

/* relu's gradient at and around 0, and at NaN: dy only where x > 0. */
ARRAY_TEST(test_relu_gradient_at_zero) {
    array x = array_of(TN_F32, 4, (double[]){0, -0.0, NAN, 1e-40}),
          dy = array_of(TN_F32, 4, (double[]){NAN, NAN, 5, 5});
    assert_int_equal(ref->binary(ctx, TN_RELU_GRAD, &x.d, &x.d, &dy.d), TN_OK);
    assert_true(array_get(&x, 0) == 0 && array_get(&x, 1) == 0 && array_get(&x, 2) == 0 &&
                array_get(&x, 3) == 5);
}

/* y = alpha a b + beta y; f32 from bf16; an empty sum is 0. */
ARRAY_TEST(test_matmul) {
    array a = array_new(TN_BF16, SPREAD, 3, (int64_t[]){1, 1, 2}),
          b = array_new(TN_BF16, SPREAD, 3, (int64_t[]){1, 2, 1}),
          y = array_new(TN_F32, SPREAD, 3, (int64_t[]){1, 1, 1});
    array_vary(&a, 1);
    array_vary(&b, 2);
    double dot = array_get(&a, 0) * array_get(&b, 0) + array_get(&a, 1) * array_get(&b, 1);
    assert_int_equal(ref->matmul(ctx, &y.d, &a.d, &b.d, 0.5, 0), TN_OK);
    array_expect(&y, 0, 0.5 * dot, 1);
    assert_int_equal(ref->matmul(ctx, &y.d, &a.d, &b.d, 0.5, 2), TN_OK);
    array_expect(&y, 0, 1.5 * dot, 2);
    a.d.size[2] = b.d.size[1] = 0;
    assert_int_equal(ref->matmul(ctx, &y.d, &a.d, &b.d, 1, 0), TN_OK);
    assert_true(array_get(&y, 0) == 0);
}

/* What is masked has no influence, not even as NaN; scores far beyond exp's range are fine; sizes
 * may be 0. */
ARRAY_TEST(test_attention_edges) {
    array q = array_of(TN_F32, 1, (double[]){1000}), k = array_of(TN_F32, 2, (double[]){1, NAN});
    array v = array_of(TN_F32, 2, (double[]){3, NAN}), y = array_of(TN_F32, 1, (double[]){0});
    array lse = array_new(TN_F32, DENSE, 3, (int64_t[]){1, 1, 1}),
          mask = array_of(TN_BOOL, 2, (double[]){1, 0});
    tn_desc *four[] = {&q.d, &k.d, &v.d, &y.d};
    for (int i = 0; i < 4; i++) {
        int64_t rows = four[i]->size[0];
        *four[i] = (tn_desc){four[i]->data, TN_F32, 4, {1, 1, rows, 1}, {rows, rows, 1, 1}};
    }
    mask.d = (tn_desc){mask.d.data, TN_BOOL, 4, {1, 1, 1, 2}, {0, 0, 0, 1}};
    tn_attention_args args = {.scale = 1};
    assert_int_equal(run_attention(ref, &y.d, &lse.d, &q.d, &k.d, &v.d, &mask.d, &args), TN_OK);
    assert_true(*(float *)y.d.data == 3 && array_get(&lse, 0) == 1000);
    k.d.size[2] = v.d.size[2] = mask.d.size[3] = 0;
    assert_int_equal(run_attention(ref, &y.d, &lse.d, &q.d, &k.d, &v.d, &mask.d, &args), TN_OK);
    assert_true(*(float *)y.d.data == 0 && array_get(&lse, 0) == -INFINITY);
}

/* ---- Cross-entropy --------------------------------------------------------------------------- */

static array matrix_of(int64_t rows, int64_t columns) {
    array a = array_new(TN_F64, SPREAD, 2, (int64_t[]){rows, columns});
    array_vary(&a, 1);
    return a;
}

static array vector_of(int64_t rows) {
    array a = array_new(TN_F64, SPREAD, 1, &rows);
    array_vary(&a, 3);
    return a;
}

/* Columns [from, from + n) of a matrix. */
static tn_desc columns_of(const array *x, int64_t from, int64_t n) {
    tn_desc d = x->d;
    d.data = (double *)d.data + from * d.stride[1];
    d.size[1] = n;
    return d;
}

/* Logits split by columns: a row whose target is in another part has loss 0, and given the maximum
 * and log_sum of the whole row a part's gradients are the whole's. */
ARRAY_TEST(test_cross_entropy_of_a_part) {
    enum { ROWS = 5, WIDTH = 7, CUT = 3 };
    const tn_cross_entropy_args whole = {.ignore_index = -100};
    array x = matrix_of(ROWS, WIDTH), dx = LIKE(x), part = LIKE(x), loss = vector_of(ROWS),
          top = LIKE(loss), sum = LIKE(loss), dloss = vector_of(ROWS),
          label = array_of(TN_I64, ROWS, (double[]){6, 0, -100, 2, 3});
    assert_int_equal(run_cross_entropy(ref, &loss.d, &top.d, &sum.d, &x.d, &label.d, &whole),
                     TN_OK);
    assert_int_equal(
        run_cross_entropy_backward(ref, &dx.d, &dloss.d, &top.d, &sum.d, &x.d, &label.d, &whole),
        TN_OK);
    for (int i = 0; i < 2; i++) {
        int64_t first = i * CUT, n = i ? WIDTH - CUT : CUT;
        const tn_cross_entropy_args args = {.ignore_index = -100, .whole = WIDTH, .first = first};
        tn_desc some = columns_of(&x, first, n), slope = columns_of(&part, first, n);
        array own = LIKE(loss), most = LIKE(loss), total = LIKE(loss);
        assert_int_equal(run_cross_entropy_backward(ref, &slope, &dloss.d, &top.d, &sum.d, &some,
                                                    &label.d, &args),
                         TN_OK);
        assert_int_equal(run_cross_entropy(ref, &own.d, &most.d, &total.d, &some, &label.d, &args),
                         TN_OK);
        for (int64_t r = 0; r < ROWS; r++) {
            int64_t column = (int64_t)array_get(&label, r) - first;
            bool here = column >= 0 && column < n;
            double logit = here ? array_get(&x, r * WIDTH + first + column) : 0;
            double lse = array_get(&most, r) + array_get(&total, r);
            array_expect_within(&own, r, here ? lse - logit : 0, 1e-13);
        }
    }
    for (int64_t i = 0; i < dx.count; i++) {
        assert_true(array_get(&part, i) == array_get(&dx, i));
    }
    const tn_cross_entropy_args outside = {.ignore_index = -100, .whole = 6, .first = 3};
    tn_desc last = columns_of(&x, 3, 3);
    assert_int_equal(run_cross_entropy(ref, &loss.d, &top.d, &sum.d, &last, &label.d, &outside),
                     TN_EINDEX);
}

/* A class that is ruled out costs nothing without smoothing. */
ARRAY_TEST(test_cross_entropy_without_a_class) {
    const tn_cross_entropy_args args = {.ignore_index = -1};
    array x = matrix_of(1, 2), label = array_of(TN_I64, 1, (double[]){1}), loss = vector_of(1),
          top = vector_of(1), sum = vector_of(1);
    array_set(&x, 0, -INFINITY);
    array_set(&x, 1, 3);
    assert_int_equal(run_cross_entropy(ref, &loss.d, &top.d, &sum.d, &x.d, &label.d, &args), TN_OK);
    assert_true(array_get(&loss, 0) == 0 && array_get(&top, 0) == 3 && array_get(&sum, 0) == 0);
}

int main(void) {
    return tests_run(ref_begin, NULL);
}
