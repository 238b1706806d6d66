/* Derivatives of elementwise operations where a formula could lose accuracy: at the ends of f16's
 * range, at kinks, and where a difference cancels.
 */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

/* ---- In f16 ---------------------------------------------------------------------------------- */

enum { PLACES = 28, MOST = PLACES * PLACES };

static const double sizes[PLACES / 2] = {6.2e-5, 6e-4, 0.0125, 0.1, 0.4, 0.5,  0.9,
                                         2.0,    7.0,  12.0,   100, 900, 9000, 60000};
static const double arriving[] = {1e-3, 0.5, 1.0, 300.0, 30000.0};

/* Number i, of both signs. */
static double place_at(int i) {
    return i % 2 ? -sizes[i / 2] : sizes[i / 2];
}

/* Gradients, as f64, for operands that f16 can hold, computed in dtype. */
static void slopes_of(const tn_op *op, const tn_sample *sample, int count, double dy,
                      tn_dtype dtype, bool recorded, double *y, double dx[2][MOST]) {
    TN_SCOPE;
    static double values[2][MOST];
    tn_tensor *in[2] = {NULL}, *out, *to, *got[2];
    for (int k = 0; k < sample->inputs; k++) {
        for (int i = 0; i < count; i++) {
            values[k][i] = place_at(k ? i / PLACES : i % PLACES);
        }
        tn_tensor *half = tn_cast(tn_from_data(values[k], TN_DIMS(count), TN_F64), TN_F16);
        in[k] = tn_set_requires_grad(tn_detach(tn_cast(half, dtype)), true);
    }
    out = tn_apply(op, sample->args, in, sample->inputs);
    to = tn_cast(tn_cast(tn_full(TN_DIMS(count), dy, TN_F64), TN_F16), dtype);
    tn_grad_options options = TN_WITH(tn_grad, .create_graph = recorded);
    assert_int_equal(tn_grad(&out, &to, 1, in, sample->inputs, got, options), TN_OK);
    TN_NO_GRAD;
    tn_copy_out(tn_cast(tn_detach(out), TN_F64), y);
    for (int k = 0; k < sample->inputs; k++) {
        tn_copy_out(tn_cast(tn_detach(got[k]), TN_F64), dx[k]);
    }
}

/* If y and dx fit in f16, the gradient computed in f16 is near dx. The tolerance has a reason: y is
 * rounded before it is read, and a slope may be a difference of numbers near 1. */
static void expect_slopes(const tn_op *op, const tn_sample *sample, double dy, bool recorded) {
    static double y[MOST], y16[MOST], want[2][MOST], got[2][MOST];
    int count = sample->inputs == 2 ? MOST : PLACES;
    slopes_of(op, sample, count, dy, TN_F64, recorded, y, want);
    slopes_of(op, sample, count, dy, TN_F16, recorded, y16, got);
    for (int k = 0; k < sample->inputs; k++) {
        for (int i = 0; i < count; i++) {
            bool fits = fabs(y[i]) < 65000 && (y[i] == 0 || fabs(y[i]) > 0x1p-14) &&
                        fabs(want[k][i]) < 64000;
            if (fits &&
                !(fabs(got[k][i] - want[k][i]) <= 0x1p-8 * (fabs(want[k][i]) + dy) + 0x1p-23)) {
                fail_msg("%s(%g, %g) \"%s\", f16%s: gradient %d of %g is %g, expected %g", op->name,
                         place_at(i % PLACES), place_at(i / PLACES), sample->text,
                         recorded ? ", recorded" : "", k, dy, got[k][i], want[k][i]);
            }
        }
    }
}

typedef struct sampler {
    tn_op_samples s;
    const tn_op *op;
    char text[200]; /* of the last one */
    bool seen;
} sampler;

static void try_sample(tn_op_samples *s, const tn_sample *sample) {
    sampler *all = (sampler *)s;
    if ((all->seen && strcmp(all->text, sample->text) == 0) || sample->inputs > 2) { return; }
    for (int k = 0; k < sample->inputs; k++) {
        if (sample->in[k].kind != TN_SPEC_REAL && sample->in[k].kind != TN_SPEC_DISTINCT) {
            return;
        }
    }
    all->seen = true;
    snprintf(all->text, sizeof all->text, "%s", sample->text);
    for (size_t i = 0; i < sizeof arriving / sizeof *arriving; i++) {
        expect_slopes(all->op, sample, arriving[i], false);
        expect_slopes(all->op, sample, arriving[i], true);
    }
}

TEST(nothing_overflows_on_the_way) {
    static const struct {
        const char *folder, *name;
    } all[] = {
#define TN_OP(folder, name, ...) {#folder, #name},
#include "ops/list.h"
#undef TN_OP
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sampler s = {.s = {.add = try_sample}, .op = tn_op_named(all[i].name)};
        if (strcmp(all[i].folder, "elementwise") == 0 && tn_op_differentiable(s.op)) {
            tn_op_list_samples(s.op, &s.s);
        }
    }
}

/* Over n elements 2 / n may be too small for f16 although the gradient is not; so may 1 / n for n
 * equal largest elements, and n itself may be too large. */
TEST(means_over_many) {
    const int64_t n = 80000;
    tn_tensor *x = tn_set_requires_grad(tn_full(TN_DIMS(n), 1000, TN_F16), true);
    tn_tensor *loss = tn_mse(x, tn_full(TN_DIMS(n), 900, TN_F16), TN_MEAN), *dx;
    tn_tensor *dy = tn_full(TN_DIMS(), 0x1p-7, TN_F16);
    assert_int_equal(tn_grad(&loss, &dy, 1, &x, 1, &dx, tn_grad_defaults()), TN_OK);
    assert_float_equal(tn_at(dx, TN_DIMS(7)) / (0x1p-7 * 100 * 2 / 80000), 1, 0x1p-7);
    tn_tensor *top = tn_max(x, TN_DIMS(0), false), *one = tn_ones_like(top);
    assert_int_equal(tn_grad(&top, &one, 1, &x, 1, &dx, tn_grad_defaults()), TN_OK);
    assert_float_equal(tn_at(dx, TN_DIMS(7)) * 80000, 1, 0x1p-7);
}

/* ---- Kinks, roundings, second derivatives ---------------------------------------------------- */

static const tn_dtype floats[] = {TN_F32, TN_F64, TN_BF16, TN_F16};

/* The slope outside of the bounds, as in PyTorch 2; 1.13 returns -dy / 2 and 3 dy / 2. */
/* As in PyTorch: where a² + b² is 0 in f32, both gradients are 0, and the second ones numbers. */
TEST(atan2_at_zero) {
    static const float a[] = {0.0f, -0.0f, 1e-30f, 0.0f, 1.0f},
                       b[] = {0.0f, 0.0f, 1e-30f, -0.0f, 0.0f};
    tn_tensor *in[2] = {tn_from_data(a, TN_DIMS(5), TN_F32), tn_from_data(b, TN_DIMS(5), TN_F32)};
    tn_set_requires_grad(in[0], true);
    tn_set_requires_grad(in[1], true);
    tn_tensor *y = tn_sum_all(tn_atan2(in[0], in[1])), *first[2], *second[2];
    tn_grad_options options = TN_WITH(tn_grad, .create_graph = true);
    assert_int_equal(tn_grad(&y, NULL, 1, in, 2, first, options), TN_OK);
    tn_tensor *sum = tn_sum_all(tn_add(tn_square(first[0]), first[1]));
    assert_int_equal(tn_grad(&sum, NULL, 1, in, 2, second, tn_grad_defaults()), TN_OK);
    for (int k = 0; k < 2; k++) {
        float slope[5], bend[5];
        tn_copy_out(tn_detach(first[k]), slope);
        tn_copy_out(second[k], bend);
        for (int i = 0; i < 5; i++) {
            assert_float_equal(slope[i], i == 4 && k == 1 ? -1 : 0, 0);
            assert_true(isfinite(bend[i]));
        }
    }
}

TEST(hardswish_at_its_bounds) {
    static const double places[] = {-3, 3, -3, 3, 0}, slopes[] = {0, 1, 0, 1, 0.5};
    for (int k = 0; k < 8; k++) {
        TN_SCOPE;
        tn_tensor *wide = tn_from_data(places, TN_DIMS(5), TN_F64);
        tn_tensor *x = tn_set_requires_grad(tn_detach(tn_cast(wide, floats[k / 2])), true);
        tn_tensor *y = tn_hardswish(x), *one = tn_ones_like(y), *dx;
        tn_grad_options options = TN_WITH(tn_grad, .create_graph = k % 2);
        assert_int_equal(tn_grad(&y, &one, 1, &x, 1, &dx, options), TN_OK);
        for (int64_t i = 0; i < 5; i++) {
            assert_float_equal(tn_at(dx, TN_DIMS(i)), slopes[i], 0);
        }
    }
}

TEST(hardsigmoid_is_rounded_once) {
    TN_NO_GRAD;
    for (int k = 2; k < 4; k++) {
        tn_tensor *x = tn_cast(tn_arange(-4, 4, 0.0371, TN_F64), floats[k]);
        tn_tensor *y = tn_hardsigmoid(x), *wide = tn_hardsigmoid(tn_cast(x, TN_F32));
        assert_true(tn_equal(y, tn_cast(wide, floats[k])));
    }
}

static tn_tensor *second_gelu_tanh(tn_dtype dtype) {
    tn_tensor *x = tn_cast(tn_cast(tn_arange(-12, 12, 0.0103, TN_F64), TN_F32), dtype);
    tn_set_requires_grad(x, true);
    tn_tensor *y = tn_gelu_tanh(x), *one = tn_ones_like(y), *d, *dd;
    tn_grad_options again = TN_WITH(tn_grad, .create_graph = true);
    assert_int_equal(tn_grad(&y, &one, 1, &x, 1, &d, again), TN_OK);
    assert_int_equal(tn_grad(&d, &one, 1, &x, 1, &dd, tn_grad_defaults()), TN_OK);
    return tn_cast(dd, TN_F64);
}

/* It is at most 0.8; the error of 1 - t² for a rounded t would be multiplied by up to 60. */
TEST(second_derivative_of_gelu_tanh) {
    tn_tensor *error = tn_abs(tn_sub(second_gelu_tanh(TN_F32), second_gelu_tanh(TN_F64)));
    assert_float_equal(tn_item(tn_max(error, TN_DIMS(0), false)), 0, 1e-6);
}
