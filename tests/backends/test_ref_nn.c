/* ref's products, softmax, norms, attention and cross-entropy. Forward against loops written here
 * from the definition; backward against central differences of the forward, in f64; the other
 * precisions against f64. */
#include "kernels.h"
#include "ref.h"

static double tolerance_of(tn_dtype dtype) {
    return dtype == TN_F64 ? 1e-12 : dtype == TN_F32 ? 3e-6 : dtype == TN_F16 ? 4e-3 : 3e-2;
}

/* sum over all elements of y * dy: the loss whose gradient a backward entry computes from dy. */
static double weighted_sum(const array *y, const array *dy) {
    double sum = 0;
    for (int64_t i = 0; i < y->count; i++) {
        sum += array_get(y, i) * array_get(dy, i);
    }
    return sum;
}

/* Every element of dx is the slope of `loss` along that element of x. */
static void expect_gradient(const array *dx, array *x, double (*loss)(void *), void *user) {
    for (int64_t i = 0; i < dx->count; i++) {
        array_expect_within(dx, i, array_slope(x, i, loss, user), 2e-8);
    }
    array_check_gaps(dx);
}

/* The same values in another dtype and layout, as operands for the other precisions. */
static array converted_array(const array *x, tn_dtype dtype, array_layout layout) {
    array y = array_new(dtype, layout, x->d.ndim, x->d.size);
    for (int64_t i = 0; i < x->count; i++) {
        array_set(&y, i, array_get(x, i));
    }
    return y;
}

static void expect_same(const array *y, const array *exact, tn_dtype precision) {
    for (int64_t i = 0; i < y->count; i++) {
        array_expect_within(y, i, array_get(exact, i),
                            tolerance_of(precision) * (1 + fabs(array_get(exact, i))));
    }
    array_check_gaps(y);
}

static array varied_array(tn_dtype dtype, array_layout layout, int ndim, const int64_t *size,
                          int salt) {
    array a = array_new(dtype, layout, ndim, size);
    array_vary(&a, salt);
    return a;
}
#define VARIED(salt, ...)                                                                   \
    varied_array(TN_F64, SPREAD, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                 (int64_t[]){__VA_ARGS__}, salt)
#define LIKE(a) array_new((a).d.dtype, SPREAD, (a).d.ndim, (a).d.size)

/* ---- Products -------------------------------------------------------------------------------- */

ARRAY_TEST(test_matmul) {
    for (int k = 0; k < 16; k++) {
        tn_dtype dtype = array_floats[k / 4];
        array a = varied_array(dtype, k & 1 ? SPREAD : DENSE, 3, (int64_t[]){2, 3, 5}, 1);
        array b = varied_array(dtype, k & 1 ? DENSE : SPREAD, 3, (int64_t[]){2, 5, 4}, 2);
        array y = array_new(dtype, SPREAD, 3, (int64_t[]){2, 3, 4}), old = y;
        if (k & 2) {
            b.d.stride[0] = 0; /* one b for all */
        }
        for (int beta = 0; beta < 2; beta++) {
            old = varied_array(dtype, DENSE, 3, y.d.size, 3);
            for (int64_t i = 0; i < y.count && beta; i++) {
                array_set(&y, i, array_get(&old, i));
            }
            assert_int_equal(ref->matmul(ctx, &y.d, &a.d, &b.d, 0.5, beta * 2.0), TN_OK);
            for (int64_t i = 0; i < y.count; i++) {
                int64_t n = i / 12, row = i / 4 % 3, column = i % 4;
                double sum = 0;
                for (int64_t t = 0; t < 5; t++) {
                    sum += array_get(&a, (n * 3 + row) * 5 + t) *
                           array_get(&b, (n * 5 + t) * 4 + column);
                }
                sum = 0.5 * sum + (beta ? 2 * array_get(&old, i) : 0);
                array_expect_within(&y, i, sum, tolerance_of(dtype) * (1 + fabs(sum)));
            }
            array_check_gaps(&y);
        }
    }
    array none = array_new(TN_F32, DENSE, 3, (int64_t[]){1, 2, 0}),
          right = array_new(TN_F32, DENSE, 3, (int64_t[]){1, 0, 2});
    array y = array_new(TN_F32, DENSE, 3, (int64_t[]){1, 2, 2});
    /* an empty sum is 0 */
    assert_int_equal(ref->matmul(ctx, &y.d, &none.d, &right.d, 1, 0), TN_OK);
    assert_true(array_get(&y, 0) == 0 && array_get(&y, 3) == 0);
    y.d.dtype = TN_I32;
    assert_int_equal(ref->matmul(ctx, &y.d, &y.d, &y.d, 1, 0), TN_EUNSUPPORTED);
}

ARRAY_TEST(test_linear) {
    for (int k = 0; k < 8; k++) {
        tn_dtype dtype = array_floats[k / 2];
        array x = varied_array(dtype, SPREAD, 2, (int64_t[]){3, 5}, 1),
              w = varied_array(dtype, DENSE, 2, (int64_t[]){4, 5}, 2);
        array b = varied_array(dtype, SPREAD, 1, (int64_t[]){4}, 3),
              y = array_new(dtype, SPREAD, 2, (int64_t[]){3, 4});
        assert_int_equal(ref->linear(ctx, &y.d, &x.d, &w.d, k % 2 ? &b.d : NULL), TN_OK);
        for (int64_t i = 0; i < 12; i++) {
            double sum = k % 2 ? array_get(&b, i % 4) : 0;
            for (int64_t t = 0; t < 5; t++) {
                sum += array_get(&x, i / 4 * 5 + t) * array_get(&w, i % 4 * 5 + t);
            }
            array_expect_within(&y, i, sum, tolerance_of(dtype) * (1 + fabs(sum)));
        }
        array_check_gaps(&y);
    }
}

/* ---- Softmax --------------------------------------------------------------------------------- */

typedef struct softmax_case {
    array x, y, dy;
    bool log_form;
} softmax_case;

static double softmax_loss(void *user) {
    softmax_case *c = user;
    run_softmax(ref, &c->y.d, &c->x.d, c->log_form);
    return weighted_sum(&c->y, &c->dy);
}

ARRAY_TEST(test_softmax) {
    for (int log_form = 0; log_form < 2; log_form++) {
        softmax_case c = {VARIED(1, 2, 3, 5), VARIED(1, 2, 3, 5), VARIED(2, 2, 3, 5), log_form};
        array_poison(&c.y);
        softmax_loss(&c);
        for (int64_t i = 0; i < 30; i++) {
            double sum = 0;
            for (int64_t j = i / 5 * 5; j < i / 5 * 5 + 5; j++) {
                sum += exp(array_get(&c.x, j));
            }
            double p = exp(array_get(&c.x, i)) / sum;
            array_expect_within(&c.y, i, log_form ? log(p) : p, 1e-14);
        }
        array_check_gaps(&c.y);
        array dx = LIKE(c.x), y0 = converted_array(&c.y, TN_F64, DENSE);
        assert_int_equal(run_softmax_backward(ref, &dx.d, &y0.d, &c.dy.d, log_form), TN_OK);
        expect_gradient(&dx, &c.x, softmax_loss, &c);
        for (int k = 0; k < 4; k++) {
            tn_dtype dtype = array_floats[k];
            array x = converted_array(&c.x, dtype, DENSE),
                  dy = converted_array(&c.dy, dtype, SPREAD);
            assert_int_equal(run_softmax(ref, &x.d, &x.d, log_form), TN_OK); /* in place */
            expect_same(&x, &y0, dtype);
            assert_int_equal(run_softmax_backward(ref, &dy.d, &x.d, &dy.d, log_form), TN_OK);
            expect_same(&dy, &dx, dtype);
        }
    }
}

ARRAY_TEST(test_softmax_special_rows) {
    array x = array_new(TN_F32, DENSE, 2, (int64_t[]){5, 3}),
          y = array_new(TN_F32, SPREAD, 2, (int64_t[]){5, 3});
    const double rows[15] = {1000,      1000,      1000,      -INFINITY, 0,
                             -INFINITY, -INFINITY, -INFINITY, -INFINITY, 0,
                             NAN,       0,         INFINITY,  0,         0};
    for (int i = 0; i < 15; i++) {
        array_set(&x, i, rows[i]);
    }
    assert_int_equal(run_softmax(ref, &y.d, &x.d, false), TN_OK);
    array_expect(&y, 0, 1.0 / 3, 1);
    assert_true(array_get(&y, 3) == 0 && array_get(&y, 4) == 1 && array_get(&y, 5) == 0);
    for (int i = 6; i < 13; i++) {
        assert_true(isnan(array_get(&y, i)));
    }
    array scalar = array_new(TN_F32, DENSE, 0, NULL);
    array_set(&scalar, 0, 7);
    assert_int_equal(run_softmax(ref, &scalar.d, &scalar.d, false), TN_OK);
    assert_true(array_get(&scalar, 0) == 1);
}

/* ---- Norms ----------------------------------------------------------------------------------- */

typedef struct norm_case {
    array x, w, b, y, mean, rstd, dy;
    bool rms, affine;
} norm_case;

static double norm_loss(void *user) {
    norm_case *c = user;
    const tn_desc *w = c->affine ? &c->w.d : NULL, *b = c->affine ? &c->b.d : NULL;
    if (c->rms) {
        run_rms_norm(ref, &c->y.d, &c->rstd.d, &c->x.d, w, 1e-5);
    } else {
        run_layer_norm(ref, &c->y.d, &c->mean.d, &c->rstd.d, &c->x.d, w, b, 1e-5);
    }
    return weighted_sum(&c->y, &c->dy);
}

static void check_norm_forward(norm_case *c) {
    norm_loss(c);
    for (int64_t i = 0; i < 4; i++) {
        double mean = 0, squares = 0, variance;
        for (int64_t j = 0; j < 6; j++) {
            mean += array_get(&c->x, i * 6 + j) / 6;
            squares += pow(array_get(&c->x, i * 6 + j), 2) / 6;
        }
        variance = c->rms ? squares : squares - mean * mean;
        mean = c->rms ? 0 : mean;
        array_expect_within(&c->rstd, i, 1 / sqrt(variance + 1e-5), 1e-12);
        if (!c->rms) {
            array_expect_within(&c->mean, i, mean, 1e-14);
        }
        for (int64_t j = 0; j < 6; j++) {
            double h = (array_get(&c->x, i * 6 + j) - mean) / sqrt(variance + 1e-5);
            double bias = c->affine && !c->rms ? array_get(&c->b, j) : 0;
            array_expect_within(&c->y, i * 6 + j, h * (c->affine ? array_get(&c->w, j) : 1) + bias,
                                1e-12);
        }
    }
    array_check_gaps(&c->y);
}

static void check_norm_backward(norm_case *c, array *dx, array *dw, array *db) {
    const tn_desc *w = c->affine ? &c->w.d : NULL;
    if (c->rms) {
        assert_int_equal(
            run_rms_norm_backward(ref, &dx->d, &dw->d, &c->dy.d, &c->x.d, &c->rstd.d, w), TN_OK);
    } else {
        assert_int_equal(run_layer_norm_backward(ref, &dx->d, &dw->d, &db->d, &c->dy.d, &c->x.d,
                                                 &c->mean.d, &c->rstd.d, w),
                         TN_OK);
    }
    array rstd = converted_array(&c->rstd, TN_F64, DENSE),
          mean = converted_array(&c->mean, TN_F64, DENSE);
    expect_gradient(dx, &c->x, norm_loss, c);
    if (c->affine) {
        expect_gradient(dw, &c->w, norm_loss, c);
    }
    if (c->affine && !c->rms) {
        expect_gradient(db, &c->b, norm_loss, c);
    }
    c->rstd = rstd;
    c->mean = mean;
}

/* The same in each precision, with statistics in f32 (f64 for f64), and without the optional
 * outputs. */
static void check_norm_precisions(const norm_case *c, const array *dx, const array *dw) {
    for (int k = 0; k < 4; k++) {
        tn_dtype dtype = array_floats[k], wide = dtype == TN_F64 ? TN_F64 : TN_F32;
        array x = converted_array(&c->x, dtype, DENSE), w = converted_array(&c->w, dtype, DENSE),
              b = converted_array(&c->b, dtype, DENSE);
        array dy = converted_array(&c->dy, dtype, DENSE), y = array_new(dtype, SPREAD, 2, x.d.size);
        array mean = converted_array(&c->mean, wide, DENSE),
              rstd = converted_array(&c->rstd, wide, DENSE);
        array dx2 = array_new(dtype, SPREAD, 2, x.d.size),
              dw2 = array_new(dtype, SPREAD, 1, w.d.size);
        const tn_desc *weight = c->affine ? &w.d : NULL;
        if (c->rms) {
            assert_int_equal(run_rms_norm(ref, &y.d, NULL, &x.d, weight, 1e-5), TN_OK);
            assert_int_equal(run_rms_norm_backward(ref, &dx2.d, NULL, &dy.d, &x.d, &rstd.d, weight),
                             TN_OK);
            assert_int_equal(run_rms_norm_backward(ref, NULL, &dw2.d, &dy.d, &x.d, &rstd.d, weight),
                             TN_OK);
        } else {
            assert_int_equal(
                run_layer_norm(ref, &y.d, NULL, NULL, &x.d, weight, c->affine ? &b.d : NULL, 1e-5),
                TN_OK);
            assert_int_equal(run_layer_norm_backward(ref, &dx2.d, NULL, NULL, &dy.d, &x.d, &mean.d,
                                                     &rstd.d, weight),
                             TN_OK);
            assert_int_equal(run_layer_norm_backward(ref, NULL, &dw2.d, NULL, &dy.d, &x.d, &mean.d,
                                                     &rstd.d, weight),
                             TN_OK);
        }
        for (int64_t i = 0; i < x.count; i++) { /* rounded operands: looser than tolerance_of() */
            array_expect_within(&y, i, array_get(&c->y, i),
                                4 * tolerance_of(dtype) * (1 + fabs(array_get(&c->y, i))));
            array_expect_within(&dx2, i, array_get(dx, i),
                                4 * tolerance_of(dtype) * (1 + fabs(array_get(dx, i))));
        }
        for (int64_t j = 0; j < w.count; j++) {
            array_expect_within(&dw2, j, array_get(dw, j),
                                8 * tolerance_of(dtype) * (1 + fabs(array_get(dw, j))));
        }
    }
}

ARRAY_TEST(test_norms) {
    for (int k = 0; k < 4; k++) {
        norm_case c = {VARIED(1, 4, 6), VARIED(2, 6), VARIED(3, 6),
                       VARIED(1, 4, 6), VARIED(1, 4), VARIED(1, 4),
                       VARIED(5, 4, 6), k & 1,        k >> 1};
        check_norm_forward(&c);
        array dx = LIKE(c.x), dw = LIKE(c.w), db = LIKE(c.b);
        check_norm_backward(&c, &dx, &dw, &db);
        norm_loss(&c);
        check_norm_precisions(&c, &dx, &dw);
    }
}

/* ---- Attention ------------------------------------------------------------------------------- */

enum { B = 2, H = 4, G = 2, TQ = 3, TK = 5, D = 2 };

typedef struct attention_case {
    array q, k, v, y, lse, dy, mask;
    bool masked;
    tn_attention_args args;
} attention_case;

static double attention_loss(void *user) {
    attention_case *c = user;
    assert_int_equal(run_attention(ref, &c->y.d, &c->lse.d, &c->q.d, &c->k.d, &c->v.d,
                                   c->masked ? &c->mask.d : NULL, &c->args),
                     TN_OK);
    return weighted_sum(&c->y, &c->dy);
}

static bool is_attended(const attention_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
    bool early = !c->args.causal || j - i <= TK - TQ;
    return early && (!c->masked || array_get(&c->mask, ((b * H + h) * TQ + i) * TK + j) != 0);
}

/* With the whole row of probabilities in an array. */
static void check_attention_forward(const attention_case *c) {
    for (int64_t n = 0; n < B * H * TQ; n++) {
        int64_t b = n / (H * TQ), h = n / TQ % H, i = n % TQ, group = b * G + h / (H / G);
        double p[TK], sum = 0;
        for (int64_t j = 0; j < TK; j++) {
            double dot = 0;
            for (int64_t d = 0; d < D; d++) {
                dot += array_get(&c->q, n * D + d) * array_get(&c->k, (group * TK + j) * D + d);
            }
            p[j] = is_attended(c, b, h, i, j) ? exp(0.7 * dot) : 0;
            sum += p[j];
        }
        assert_true(sum > 0 ? fabs(array_get(&c->lse, n) - log(sum)) < 1e-12
                            : array_get(&c->lse, n) == -INFINITY);
        for (int64_t d = 0; d < D; d++) {
            double value = 0;
            for (int64_t j = 0; j < TK; j++) {
                value += p[j] * array_get(&c->v, (group * TK + j) * D + d);
            }
            array_expect_within(&c->y, n * D + d, sum > 0 ? value / sum : 0, 1e-12);
        }
    }
    array_check_gaps(&c->y);
    array_check_gaps(&c->lse);
}

static void check_attention_precisions(const attention_case *c, const array *const *gradient) {
    for (int t = 0; t < 4; t++) {
        tn_dtype dtype = array_floats[t];
        array q = converted_array(&c->q, dtype, DENSE), k = converted_array(&c->k, dtype, DENSE),
              v = converted_array(&c->v, dtype, DENSE);
        array dy = converted_array(&c->dy, dtype, DENSE), y = array_new(dtype, DENSE, 4, q.d.size);
        array lse = array_new(dtype == TN_F64 ? TN_F64 : TN_F32, DENSE, 3, q.d.size);
        array d[3] = {array_new(dtype, DENSE, 4, q.d.size), array_new(dtype, DENSE, 4, k.d.size),
                      array_new(dtype, DENSE, 4, k.d.size)};
        assert_int_equal(run_attention(ref, &y.d, &lse.d, &q.d, &k.d, &v.d,
                                       c->masked ? &c->mask.d : NULL, &c->args),
                         TN_OK);
        assert_int_equal(run_attention_backward(ref, &d[0].d, &d[1].d, &d[2].d, &dy.d, &y.d, &lse.d,
                                                &q.d, &k.d, &v.d, c->masked ? &c->mask.d : NULL,
                                                &c->args),
                         TN_OK);
        for (int64_t i = 0; i < y.count; i++) {
            array_expect_within(&y, i, array_get(&c->y, i), 4 * tolerance_of(dtype));
        }
        for (int g = 0; g < 3; g++) {
            for (int64_t i = 0; i < d[g].count; i++) {
                double exact = array_get(gradient[g], i);
                array_expect_within(&d[g], i, exact, 16 * tolerance_of(dtype) * (1 + fabs(exact)));
            }
        }
    }
}

ARRAY_TEST(test_attention) {
    for (int kind = 0; kind < 4; kind++) { /* bit 0: causal, bit 1: masked */
        attention_case c = {VARIED(1, B, H, TQ, D),
                            VARIED(2, B, G, TK, D),
                            VARIED(3, B, G, TK, D),
                            VARIED(1, B, H, TQ, D),
                            VARIED(1, B, H, TQ),
                            VARIED(4, B, H, TQ, D),
                            array_new(TN_BOOL, SPREAD, 4, (int64_t[]){B, H, TQ, TK}),
                            .args = {.scale = 0.7, .causal = kind & 1}};
        for (int64_t i = 0; i < c.mask.count; i++) {
            array_set(&c.mask, i, i / TK % 7 != 3 && i * 11 % 5 > 1); /* some rows see nothing */
        }
        c.masked = kind & 2;
        array_poison(&c.y);
        array_poison(&c.lse);
        attention_loss(&c);
        check_attention_forward(&c);
        array dq = LIKE(c.q), dk = LIKE(c.k), dv = LIKE(c.v);
        array y = converted_array(&c.y, TN_F64, DENSE),
              lse = converted_array(&c.lse, TN_F64, DENSE);
        assert_int_equal(run_attention_backward(ref, &dq.d, &dk.d, &dv.d, &c.dy.d, &y.d, &lse.d,
                                                &c.q.d, &c.k.d, &c.v.d, c.masked ? &c.mask.d : NULL,
                                                &c.args),
                         TN_OK);
        expect_gradient(&dq, &c.q, attention_loss, &c);
        expect_gradient(&dk, &c.k, attention_loss, &c);
        expect_gradient(&dv, &c.v, attention_loss, &c);
        attention_loss(&c);
        check_attention_precisions(&c, (const array *[]){&dq, &dk, &dv});
    }
}

/* What is masked has no influence, not even as NaN; scores far beyond exp's range are fine; sizes
 * may be 0. */
ARRAY_TEST(test_attention_edges) {
    array q = array_of(TN_F32, 1, (double[]){1000}), k = array_of(TN_F32, 2, (double[]){1, NAN});
    array v = array_of(TN_F32, 2, (double[]){3, NAN}),
          y = array_new(TN_F32, DENSE, 1, (int64_t[]){1});
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

/* A row of equal elements has no deviation: y is the bias, to the bit. */
ARRAY_TEST(test_norm_of_a_constant) {
    for (int k = 0; k < 4; k++) {
        array x = array_new(array_floats[k], DENSE, 2, (int64_t[]){1, 257}), y = LIKE(x),
              b = array_new(array_floats[k], DENSE, 1, (int64_t[]){257});
        for (int64_t i = 0; i < 257; i++) {
            array_set(&x, i, 1000.7);
        }
        array_vary(&b, 1);
        assert_int_equal(run_layer_norm(ref, &y.d, NULL, NULL, &x.d, NULL, &b.d, 1e-5), TN_OK);
        for (int64_t i = 0; i < 257; i++) {
            assert_true(array_get(&y, i) == array_get(&b, i));
        }
    }
}

/* ---- Rotary positions ------------------------------------------------------------------------ */

typedef struct rotary_case {
    array x, y, dy, positions;
    tn_rotary_args args;
} rotary_case;

static double rotary_loss(void *user) {
    rotary_case *c = user;
    assert_int_equal(run_rotary(ref, &c->y.d, &c->x.d, &c->positions.d, &c->args), TN_OK);
    return weighted_sum(&c->y, &c->dy);
}

/* Each pair is a complex number times exp(i angle). Four pairs that turn 100^(-i/4) radians per
 * position make 8, 2.5, 0.8 and 0.25 turns in a context of 50, so the first is fast, the second
 * half-way, the others slow. */
ARRAY_TEST(test_rotary) {
    enum { BATCH = 2, HEADS = 3, TIME = 3, WIDTH = 8 };
    static const double positions[] = {0, 1, 7, 2, 2, 30};
    for (int kind = 0; kind < 4; kind++) { /* bit 0: inverse, bit 1: a factor */
        rotary_case c = {VARIED(1, BATCH, HEADS, TIME, WIDTH),
                         VARIED(2, BATCH, HEADS, TIME, WIDTH),
                         VARIED(3, BATCH, HEADS, TIME, WIDTH),
                         array_new(kind & 1 ? TN_I64 : TN_I32, SPREAD, 2, (int64_t[]){BATCH, TIME}),
                         {100.0, kind & 2 ? 16.0 : 1.0, 1.0, 4.0, 50, kind & 1}};
        for (int i = 0; i < BATCH * TIME; i++) {
            array_set(&c.positions, i, positions[i]);
        }
        array_poison(&c.y);
        rotary_loss(&c);
        for (int64_t i = 0; i < c.x.count; i++) {
            int64_t row = i / WIDTH, pair = i % (WIDTH / 2), t = row % TIME,
                    b = row / (HEADS * TIME);
            double f = pow(100.0, -pair / 4.0), turns = 50 * f / (2 * 3.14159265358979323846);
            if (kind & 2 && turns < 4) {
                double fast = turns < 1 ? 0 : (turns - 1) / 3;
                f = fast * f + (1 - fast) * f / 16;
            }
            double angle = positions[b * TIME + t] * f * (kind & 1 ? -1 : 1);
            double re = array_get(&c.x, row * WIDTH + pair),
                   im = array_get(&c.x, row * WIDTH + pair + WIDTH / 2);
            double want = i % WIDTH < WIDTH / 2 ? re * cos(angle) - im * sin(angle)
                                                : re * sin(angle) + im * cos(angle);
            array_expect_within(&c.y, i, want, 1e-14);
        }
        array_check_gaps(&c.y);
        array dx = LIKE(c.x), y0 = converted_array(&c.y, TN_F64, DENSE);
        tn_rotary_args back = c.args;
        back.inverse = !back.inverse;
        assert_int_equal(run_rotary(ref, &dx.d, &c.dy.d, &c.positions.d, &back), TN_OK);
        expect_gradient(&dx, &c.x, rotary_loss, &c);
        for (int k = 0; k < 4; k++) {
            array x = converted_array(&c.x, array_floats[k], DENSE), y = LIKE(x);
            assert_int_equal(run_rotary(ref, &y.d, &x.d, &c.positions.d, &c.args), TN_OK);
            expect_same(&y, &y0, array_floats[k]);
        }
    }
}

/* ---- Cross-entropy --------------------------------------------------------------------------- */

typedef struct cross_entropy_case {
    array x, label, loss, top, log_sum, dloss;
    tn_cross_entropy_args args;
} cross_entropy_case;

static double cross_entropy_loss(void *user) {
    cross_entropy_case *c = user;
    assert_int_equal(run_cross_entropy(ref, &c->loss.d, &c->top.d, &c->log_sum.d, &c->x.d,
                                       &c->label.d, &c->args),
                     TN_OK);
    return weighted_sum(&c->loss, &c->dloss);
}

ARRAY_TEST(test_cross_entropy) {
    for (int k = 0; k < 4; k++) {
        double s = k & 1 ? 0.2 : 0;
        cross_entropy_case c = {VARIED(1, 5, 4),
                                array_of(k & 2 ? TN_I32 : TN_I64, 5, (double[]){3, 0, -100, 1, 1}),
                                VARIED(1, 5),
                                VARIED(1, 5),
                                VARIED(1, 5),
                                VARIED(2, 5),
                                {.ignore_index = -100, .label_smoothing = s}};
        array_poison(&c.loss);
        array_poison(&c.top);
        array_poison(&c.log_sum);
        cross_entropy_loss(&c);
        for (int64_t i = 0; i < 5; i++) {
            double sum = 0, value = 0, largest = -INFINITY;
            int64_t label = (int64_t)array_get(&c.label, i);
            for (int64_t j = 0; j < 4; j++) {
                sum += exp(array_get(&c.x, i * 4 + j));
                largest = fmax(largest, array_get(&c.x, i * 4 + j));
            }
            for (int64_t j = 0; j < 4; j++) { /* minus the target distribution times log p */
                double wanted = s / 4 + (j == label ? 1 - s : 0);
                value -= wanted * (array_get(&c.x, i * 4 + j) - log(sum));
            }
            assert_true(array_get(&c.top, i) == largest);
            array_expect_within(&c.log_sum, i, log(sum) - largest, 1e-13);
            array_expect_within(&c.loss, i, label == -100 ? 0 : value, 1e-13);
        }
        array dx = LIKE(c.x);
        assert_int_equal(run_cross_entropy_backward(ref, &dx.d, &c.dloss.d, &c.top.d, &c.log_sum.d,
                                                    &c.x.d, &c.label.d, &c.args),
                         TN_OK);
        expect_gradient(&dx, &c.x, cross_entropy_loss, &c);
        cross_entropy_loss(&c);
        for (int t = 0; t < 4; t++) {
            tn_dtype dtype = array_floats[t], wide = dtype == TN_F64 ? TN_F64 : TN_F32;
            array x = converted_array(&c.x, dtype, DENSE),
                  loss = array_new(wide, SPREAD, 1, (int64_t[]){5}), top = LIKE(loss),
                  sum = LIKE(loss);
            array dloss = converted_array(&c.dloss, wide, SPREAD);
            assert_int_equal(
                run_cross_entropy(ref, &loss.d, &top.d, &sum.d, &x.d, &c.label.d, &c.args), TN_OK);
            expect_same(&loss, &c.loss, dtype);
            assert_int_equal(run_cross_entropy_backward(ref, &x.d, &dloss.d, &top.d, &sum.d, &x.d,
                                                        &c.label.d, &c.args),
                             TN_OK);
            expect_same(&x, &dx, dtype); /* dx is x's memory */
        }
    }
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
    array x = VARIED(1, ROWS, WIDTH), dx = LIKE(x), part = LIKE(x), loss = VARIED(1, ROWS),
          top = LIKE(loss), sum = LIKE(loss), dloss = VARIED(3, ROWS),
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

ARRAY_TEST(test_bad_labels) {
    tn_cross_entropy_args args = {.ignore_index = -1};
    array x = VARIED(1, 3, 4), loss = VARIED(1, 3), dx = LIKE(x);
    for (int bad = -2; bad <= 4; bad += 6) {
        array label = array_of(TN_I64, 3, (double[]){-1, bad, 0});
        ctx->bad_position = ctx->bad_value = -9;
        assert_int_equal(run_cross_entropy(ref, &loss.d, &loss.d, &loss.d, &x.d, &label.d, &args),
                         TN_EINDEX);
        assert_true(ctx->bad_position == 1 && ctx->bad_value == bad);
        ctx->bad_position = -9;
        assert_int_equal(run_cross_entropy_backward(ref, &dx.d, &loss.d, &loss.d, &loss.d, &x.d,
                                                    &label.d, &args),
                         TN_EINDEX);
        assert_true(ctx->bad_position == 1);
    }
    x = array_new(TN_F32, DENSE, 2, (int64_t[]){1, 2});
    array label = array_of(TN_I64, 1, (double[]){1}),
          top = array_new(TN_F32, DENSE, 1, (int64_t[]){1}),
          sum = array_new(TN_F32, DENSE, 1, (int64_t[]){1});
    loss = array_new(TN_F32, DENSE, 1, (int64_t[]){1});
    array_set(&x, 0, -INFINITY); /* a class that is ruled out costs nothing without smoothing */
    array_set(&x, 1, 3);
    assert_int_equal(run_cross_entropy(ref, &loss.d, &top.d, &sum.d, &x.d, &label.d, &args), TN_OK);
    assert_true(array_get(&loss, 0) == 0 && array_get(&top, 0) == 3 && array_get(&sum, 0) == 0);
}

int main(void) {
    return tests_run(ref_begin, NULL);
}
