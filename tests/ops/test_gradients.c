/* Backward kernels and the rules that they replace: the same gradients far from zero, in the small
 * dtypes, and on a device that has only some of the kernels. tn_op_check compares them on every
 * operation's samples; this tests what samples cannot.
 */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include "ops/check.h"
#include <tern/sys/op.h>
#include <tern/tern.h>

enum { MOST = 16 };

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16};

/* The gradient of sum(op(x)) from the kernel, then recorded; then its own gradient. */
static void gradients_of(const tn_op *op, tn_tensor *x, double *plain, double *recorded,
                         double *second) {
    tn_tensor *y = tn_apply1(op, NULL, x), *one = tn_ones(tn_shape(y), tn_dtype_of(y)), *d, *dd;
    tn_grad_options once = TN_WITH(tn_grad, .retain_graph = true),
                    again = TN_WITH(tn_grad, .create_graph = true);
    assert_int_equal(tn_grad(&y, &one, 1, &x, 1, &d, once), TN_OK);
    tn_copy_out(tn_cast(d, TN_F64), plain);
    assert_int_equal(tn_grad(&y, &one, 1, &x, 1, &d, again), TN_OK);
    tn_copy_out(tn_cast(tn_detach(d), TN_F64), recorded);
    memset(second, 0, MOST * sizeof *second);
    if (tn_requires_grad(d)) { /* relu's is constant */
        assert_int_equal(tn_grad(&d, &one, 1, &x, 1, &dd, once), TN_OK);
        tn_copy_out(tn_cast(dd, TN_F64), second);
    }
}

/* Squares overflow f16 at 256, exponentials f32 at 89, cubes f32 at 1e13. */
TEST(far_from_zero) {
    static const char *const names[] = {"gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu"};
    static const double places[] = {88, -88, 95, -95, 300, -300, 3e4, -3e4, 1e14, -1e14, 1e30};
    double x[MOST], plain[MOST], recorded[MOST], second[MOST];
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        for (size_t k = 0; k < sizeof floats / sizeof *floats; k++) {
            TN_SCOPE;
            int n = floats[k] == TN_F16 ? 8 : 11;
            memcpy(x, places, sizeof places);
            tn_tensor *t = tn_cast(tn_from_data(x, TN_DIMS(n), TN_F64), floats[k]);
            tn_set_requires_grad(t, true);
            gradients_of(tn_op_named(names[f]), t, plain, recorded, second);
            for (int i = 0; i < n; i++) {
                if (!(fabs(recorded[i] - plain[i]) <= 1e-7) || !isfinite(second[i])) {
                    fail_msg("%s(%g), %s: %g, recorded %g, second %g", names[f], places[i],
                             tn_dtype_name(floats[k]), plain[i], recorded[i], second[i]);
                }
            }
        }
    }
}

/* The product of x[0 … last] without x[i] and x[j]. */
static double product_without(const double *x, int last, int i, int j) {
    double product = 1.0;
    for (int k = 0; k <= last; k++) {
        product *= k == i || k == j ? 1.0 : x[k];
    }
    return product;
}

/* Products have second derivatives at zeros too: those of the sum of w[m] x[0] … x[m]. */
TEST(products_of_zeros) {
    enum { N = 4 };
    static const double lines[][N] = {
        {2, 3, -1, 4}, {2, 0, 3, 5}, {0, 0, 3, 2}, {3, 0, 0, 0}, {0, 0, 0, 0}};
    static const double weights[][N] = {{0, 0, 0, 1}, {1, -10, 100, 1000}};
    tn_grad_options again = TN_WITH(tn_grad, .create_graph = true),
                    once = TN_WITH(tn_grad, .retain_graph = true);
    for (int c = 0; c < 10; c++) {
        TN_SCOPE;
        const double *line = lines[c / 2], *w = weights[c % 2];
        tn_tensor *x = tn_set_requires_grad(tn_from_data(line, TN_DIMS(N), TN_F64), true);
        tn_tensor *y =
            c % 2 ? tn_sum_all(tn_mul(tn_cumprod(x, 0), tn_from_data(w, TN_DIMS(N), TN_F64)))
                  : tn_prod(x, TN_DIMS(0), false);
        tn_tensor *one = tn_ones(TN_DIMS(), TN_F64), *d, *dd;
        assert_int_equal(tn_grad(&y, &one, 1, &x, 1, &d, again), TN_OK);
        for (int i = 0; i < N; i++) {
            tn_tensor *slope = tn_select(d, 0, i);
            assert_int_equal(tn_grad(&slope, &one, 1, &x, 1, &dd, once), TN_OK);
            for (int j = 0; j < N; j++) {
                double expected = 0.0;
                for (int m = i > j ? i : j; m < N && i != j; m++) {
                    expected += w[m] * product_without(line, m, i, j);
                }
                assert_float_equal(tn_at(dd, TN_DIMS(j)), expected, 1e-9);
            }
        }
    }
}

/* The product of the first or the second half overflows the dtype, but dx does not; recorded or
 * not. */
TEST(products_beyond_the_dtype) {
    static const struct {
        tn_dtype dtype;
        double x[4], dx[4];
    } lines[] = {{TN_F32, {1e25, 1e25, 1e-25, 1e-25}, {1e-25, 1e-25, 1e25, 1e25}},
                 {TN_F32, {1e-25, 1e-25, 1e25, 1e25}, {1e25, 1e25, 1e-25, 1e-25}},
                 {TN_F16, {1024, 1024, 0x1p-10, 0x1p-10}, {0x1p-10, 0x1p-10, 1024, 1024}}};
    for (size_t c = 0; c < 2 * sizeof(lines) / sizeof(*lines); c++) {
        TN_SCOPE;
        tn_tensor *wide = tn_from_data(lines[c / 2].x, TN_DIMS(4), TN_F64);
        tn_tensor *x = tn_detach(tn_cast(wide, lines[c / 2].dtype)), *dx;
        tn_set_requires_grad(x, true);
        tn_tensor *last = tn_select(tn_cumprod(x, 0), 0, 3), *one = tn_ones_like(last);
        tn_grad_options options = TN_WITH(tn_grad, .create_graph = c % 2);
        assert_int_equal(tn_grad(&last, &one, 1, &x, 1, &dx, options), TN_OK);
        for (int64_t i = 0; i < 4; i++) {
            assert_float_equal(tn_at(dx, TN_DIMS(i)) / lines[c / 2].dx[i], 1, 1e-6);
        }
    }
}

/* The result has one element, and backward does not walk through the stride. */
TEST(a_stride_beyond_all) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, 1, 3, 4), TN_F32), true);
    tn_tensor *w = tn_ones(TN_DIMS(1, 1, 2, 2), TN_F32);
    tn_conv_options o = tn_conv_strided(INT32_MAX, 1);
    assert_int_equal(tn_backward(tn_sum_all(tn_conv2d_op(x, w, NULL, o))), TN_OK);
    tn_tensor *dx = tn_grad_of(x);
    assert_float_equal(tn_at(dx, TN_DIMS(0, 0, 0, 0)), 1, 0);
    assert_float_equal(tn_item(tn_sum_all(dx)), 1, 0);
}

/* An operation with a backward kernel also needs a rule or a composition; the host's loops run for
 * any device. One that is differentiated through its composition saves all inputs. */
TEST(nothing_depends_on_a_kernel) {
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        if (op->backward_kernel && !op->backward && !op->compose) {
            fail_msg("%s has only a kernel", op->name);
        }
        bool recorded = op->forward || op->host.forward ||
                        op->kernel; /* else the composition's operations are recorded */
        if (op->compose && recorded && !op->backward && (op->saves & 0xffff) != TN_SAVES_INPUTS) {
            fail_msg("%s does not save what its composition reads", op->name);
        }
    }
}

/* ---- A device that has only forwards -------------------------------------------------------- */

/* The gradient is made by the rule, or by differentiating the composition. */
TEST(forwards_alone) {
    for (int i = 0; i < tn_op_count(); i++) {
        tn_op op = *tn_op_at(i);
        if (op.backward_kernel || op.host.backward || op.kernel) {
            op.kernel = 0;
            op.backward_kernel = NULL;
            op.host.backward = NULL;
            if (tn_op_check(&op) != TN_OK) { fail_msg("%s", tn_error_message()); }
        }
    }
}

/* ---- Dtypes of gradients --------------------------------------------------------------------- */

typedef union layer {
    tn_module base;
    tn_layer_norm norm;
    tn_rms_norm rms;
    tn_linear linear;
} layer;

enum { NORM, RMS, BIAS, LAYERS };

/* The gradient of a parameter of 5 numbers, a sum over 64 rows. */
static tn_tensor *gradient_of_layer(int kind, tn_dtype compute) {
    layer m;
    tn_tensor **parameter = NULL;
    if (kind == NORM) {
        tn_layer_norm_init(&m.norm, 5, tn_norm_defaults());
        parameter = &m.norm.weight;
    } else if (kind == RMS) {
        tn_rms_norm_init(&m.rms, 5, tn_norm_defaults());
        parameter = &m.rms.weight;
    } else {
        tn_linear_init(&m.linear, 5, 5, tn_linear_defaults());
        parameter = &m.linear.bias;
    }
    tn_precision policy = tn_precision_defaults();
    policy.compute = compute;
    assert_int_equal(tn_module_set_precision(&m, policy), TN_OK);
    tn_generator g = {.seed = 5};
    /* numbers that bf16 holds, so that both dtypes read the same */
    tn_tensor *x = tn_cast(tn_normal_(tn_empty(TN_DIMS(64, 5), TN_F32), 0, 1, &g), TN_BF16);
    tn_tensor *dy = tn_cast(tn_normal_(tn_empty(TN_DIMS(64, 5), TN_F32), 0, 1, &g), TN_BF16);
    tn_tensor *y = tn_call(&m, tn_cast(x, compute)), *by = tn_cast(dy, compute);
    assert_int_equal(tn_backward_from(&y, &by, 1, false), TN_OK);
    tn_tensor *d = tn_copy(tn_grad_of(*parameter));
    tn_module_finish(&m);
    return d;
}

/* Gradients that are sums over many rows never pass through bf16's 8 bits. */
TEST(rows_are_summed_in_f32) {
    for (int kind = 0; kind < LAYERS; kind++) {
        tn_tensor *narrow = gradient_of_layer(kind, TN_BF16);
        tn_tensor *wide = gradient_of_layer(kind, TN_F32);
        assert_int_equal(tn_dtype_of(narrow), TN_F32);
        assert_true(tn_all_close(narrow, wide, 1e-5, 1e-5));
    }
}

/* One weight in three products: their gradients are accumulated into the first one. */
TEST(shared_weights) {
    static const char *const tables[] = {"ref", "cpu"};
    for (int k = 0; k < 2; k++) {
        TN_SCOPE;
        tn_backend_use(tn_backend_named(tables[k]));
        tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(4, 3), TN_F32), true);
        tn_tensor *b = tn_set_requires_grad(tn_ones(TN_DIMS(4), TN_F32), true), *sum = NULL;
        for (int i = 1; i <= 3; i++) {
            tn_tensor *x = tn_full(TN_DIMS(2, 5, 3), i, TN_F32);
            tn_tensor *y = tn_sum_all(tn_mul_scalar(tn_linear_op(x, w, b), i));
            sum = sum ? tn_add(sum, y) : y;
        }
        assert_int_equal(tn_backward(sum), TN_OK);
        tn_backend_use(NULL);
        assert_true(tn_equal(tn_grad_of(w), tn_full(TN_DIMS(4, 3), 10 * (1 + 4 + 9), TN_F32)));
        assert_true(tn_equal(tn_grad_of(b), tn_full(TN_DIMS(4), 10 * (1 + 2 + 3), TN_F32)));
    }
}

/* An embedding that no row was read from, computed in bf16. */
TEST(nothing_widened) {
    tn_embedding m;
    tn_embedding_init(&m, 4, 2, tn_embedding_defaults());
    tn_precision policy = tn_precision_defaults();
    policy.compute = TN_BF16;
    tn_module_set_precision(&m, policy);
    tn_tensor *y = tn_call(&m, tn_zeros(TN_DIMS(0), TN_I64));
    assert_int_equal(tn_backward(tn_sum_all(y)), TN_OK);
    assert_true(tn_equal(tn_grad_of(m.weight), tn_zeros(TN_DIMS(4, 2), TN_F32)));
    tn_module_finish(&m);
}

/* A bf16 leaf whose gradient is f32 gets sums of f32: bf16 cannot hold 513. */
TEST(wide_leaves) {
    tn_tensor *x = tn_ones(TN_DIMS(513, 3), TN_BF16);
    tn_tensor *leaf[3] = {tn_ones(TN_DIMS(2, 3), TN_BF16), tn_ones(TN_DIMS(2), TN_BF16),
                          tn_ones(TN_DIMS(3), TN_BF16)};
    for (int i = 0; i < 3; i++) {
        tn_set_requires_grad(leaf[i], true);
        assert_int_equal(tn_set_grad_dtype(leaf[i], TN_F32), TN_OK);
    }
    tn_tensor *y = tn_sum_all(tn_linear_op(x, leaf[0], leaf[1]));
    assert_int_equal(tn_backward(y), TN_OK);
    y = tn_sum_all(tn_layer_norm_op(x, NULL, leaf[2], 1e-5));
    assert_int_equal(tn_backward(y), TN_OK);
    for (int i = 0; i < 3; i++) {
        tn_dims dims = tn_shape(leaf[i]);
        assert_true(tn_equal(tn_grad_of(leaf[i]), tn_full(dims, 513, TN_F32)));
    }
}

/* A bf16 parameter computed in f32: its gradient is summed in f32 and rounded once. */
TEST(narrower_parameters) {
    tn_embedding m;
    tn_embedding_init(&m, 1, 1, TN_WITH(tn_embedding, .dtype = TN_BF16));
    tn_precision policy = tn_precision_defaults();
    policy.param = TN_BF16;
    policy.compute = TN_F32;
    tn_module_set_precision(&m, policy);
    float rows[] = {1.0f + 0x1p-10f, -1.0f};
    tn_tensor *y = tn_call(&m, tn_zeros(TN_DIMS(2), TN_I64));
    tn_tensor *dy = tn_from_data(rows, TN_DIMS(2, 1), TN_F32);
    assert_int_equal(tn_backward_from(&y, &dy, 1, false), TN_OK);
    assert_float_equal(tn_item(tn_cast(tn_grad_of(m.weight), TN_F32)), 0x1p-10, 0.0);
    tn_module_finish(&m);
}

/* A NaN is found before it is added to the gradient from another use. */
TEST(anomalies_in_sums) {
    tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(2, 2), TN_F32), true);
    tn_tensor *good = tn_ones(TN_DIMS(3, 2), TN_F32),
              *bad = tn_full(TN_DIMS(3, 2), INFINITY, TN_F32);
    tn_tensor *y[] = {tn_linear_op(bad, w, NULL), tn_linear_op(good, w, NULL)};
    tn_tensor *dy[] = {tn_zeros(TN_DIMS(3, 2), TN_F32), good};
    tn_set_anomaly(true);
    tn_backward_from(y, dy, 2, false);
    tn_set_anomaly(false);
    assert_error(TN_EVALUE, "linear: the gradient of an input");
}
