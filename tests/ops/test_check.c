/* tn_op_check itself: operations that are wrong in one way each, all made from exp. Each mistake
 * must be found, and the message must name the operation, sample and check.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

static void check_finds(const tn_op *op, const char *first, const char *second) {
    tn_status status = tn_op_check(op);
    if (status == TN_OK || !strstr(tn_error_message(), first) ||
        !strstr(tn_error_message(), second)) {
        fail_msg("no \"%s\" and \"%s\" in: %s", first, second, tn_error_message());
    }
    tn_error_clear();
}

static tn_tensor *right_gradient(tn_op_grad *g) {
    return tn_mul(g->dout[0], tn_op_saved_output(g, 0));
}

/* ---- Backward -------------------------------------------------------------------------------- */

static void wrong_sign(tn_op_grad *g) {
    tn_op_give(g, 0, tn_neg(right_gradient(g)));
}

static void wrong_when_recorded(tn_op_grad *g) {
    tn_op_give(g, 0, tn_grad_mode() ? tn_mul_scalar(right_gradient(g), 2.0) : right_gradient(g));
}

static void wrong_in_f32(tn_op_grad *g) {
    bool wrong = tn_dtype_of(g->dout[0]) == TN_F32;
    tn_op_give(g, 0, wrong ? tn_mul_scalar(right_gradient(g), 1.01) : right_gradient(g));
}

PLAIN_TEST(wrong_gradients) {
    tn_op op = *tn_op_named("exp");
    op.samples = "{once -1:1} [2, 3]";
    assert_int_equal(tn_op_check(&op), TN_OK);
    op.backward = wrong_sign;
    check_finds(&op, "exp: sample 0 ([2, 3]; ), contiguous: ", "");
    op.backward = wrong_when_recorded;
    check_finds(&op, "exp: sample 0", "the recorded gradient of input 0");
    op.backward = wrong_in_f32;
    check_finds(&op, "f32: ", "gradient of input 0");
    op.samples = "{once -1:1} [500]";
    op.backward = wrong_sign;
    check_finds(&op, "exp: sample 0 ([500]; )", "along a direction backward gives");
}

/* Backward kernels that handle only f32: the rule does the rest. */
static tn_status right_kernel(const tn_op_back *b) {
    return b->dy[0]->dtype == TN_F32
               ? b->kernels->binary(b->ctx, TN_MUL, b->dx[0], b->dy[0], b->y[0])
               : TN_EUNSUPPORTED;
}

static tn_status wrong_kernel(const tn_op_back *b) {
    return b->dy[0]->dtype == TN_F32 ? b->kernels->copy(b->ctx, b->dx[0], b->dy[0])
                                     : TN_EUNSUPPORTED;
}

static tn_status no_kernel(const tn_op_back *b) {
    return TN_EUNSUPPORTED;
}

PLAIN_TEST(wrong_kernels) {
    tn_op op = *tn_op_named("exp");
    op.samples = "{once -1:1} [2, 3]";
    op.backward_kernel = right_kernel;
    assert_int_equal(tn_op_check(&op), TN_OK);
    op.backward_kernel = wrong_kernel;
    check_finds(&op, "f32: ", "the recorded gradient of input 0");
    op.backward_kernel = no_kernel;
    op.backward = NULL;
    check_finds(&op, "exp: sample 0", "kernels do not handle f64");
}

/* An operation of two inputs: one gradient is wrong or missing when the other is not wanted. */
static void wrong_alone(tn_op_grad *g) {
    for (int i = 0; i < 2; i++) {
        if (g->wants[i]) {
            tn_tensor *dx = tn_mul(g->dout[0], tn_op_saved_input(g, 1 - i));
            tn_op_give(g, i, g->wants[1 - i] ? dx : tn_mul_scalar(dx, 1.01));
        }
    }
}

static void missing_alone(tn_op_grad *g) {
    for (int i = 0; i < 2 && g->wants[0]; i++) {
        tn_op_give(g, i, tn_mul(g->dout[0], tn_op_saved_input(g, 1 - i)));
    }
}

PLAIN_TEST(wrong_subsets) {
    tn_op op = *tn_op_named("mul");
    op.saves = TN_SAVES_INPUTS;
    op.backward = wrong_alone;
    check_finds(&op, "mul: sample 0", "gradients 0x1 of 0x3 wanted, gradient of input 0");
    op.backward = missing_alone;
    check_finds(&op, "mul: sample 0", "0x2 of 0x3 wanted, gradient of input 1 is not there");
}

static void linear_gives_nothing(tn_op_grad *g) {}

PLAIN_TEST(absent_inputs_are_named) {
    tn_op op = *tn_op_named("linear");
    op.backward = linear_gives_nothing;
    check_finds(&op, "linear: sample 0 ([3, 4] [5, 4] [5]; )", "");
}

/* ---- Forward --------------------------------------------------------------------------------- */

static tn_status exp_forward(const tn_op_call *c) {
    return c->kernels->unary(c->ctx, TN_EXP, c->y[0], c->x[0], 0.0, 0.0);
}

static tn_status imprecise_forward(const tn_op_call *c) {
    tn_status status = exp_forward(c);
    return status == TN_OK && c->y[0]->dtype == TN_F32
               ? c->kernels->unary(c->ctx, TN_MUL_K, c->y[0], c->y[0], 1.001, 0.0)
               : status;
}

static tn_status large_dtypes_only(const tn_op_call *c) {
    bool small_dtype = c->y[0]->dtype == TN_BF16 || c->y[0]->dtype == TN_F16;
    return small_dtype ? TN_EUNSUPPORTED : exp_forward(c);
}

/* Assumes that x is row-major if its outermost stride says so. */
static tn_status row_major_forward(const tn_op_call *c) {
    tn_desc x = *c->x[0];
    if (x.ndim == 3 && x.stride[0] == x.size[1] * x.size[2]) {
        x.stride[1] = x.size[2];
        x.stride[2] = 1;
    }
    return c->kernels->unary(c->ctx, TN_EXP, c->y[0], &x, 0.0, 0.0);
}

/* Enough samples that each order has its turn on a slow device, too. */
PLAIN_TEST(wrong_orders) {
    tn_op op = *tn_op_named("exp");
    op.samples = "[2, 3, 4]; [2, 3, 4]; [2, 3, 4]; [2, 3, 4]; [2, 3, 4]";
    op.forward = row_major_forward;
    check_finds(&op, " ([2, 3, 4]; ), ", "operand 0 in order 3, result 0");
}

static tn_tensor *lost[64];
static int losses;

static tn_status leaking_forward(const tn_op_call *c) {
    if (c->y[0]->dtype == TN_F32 && losses < 64) {
        lost[losses++] = tn_keep(tn_zeros(TN_DIMS(1), TN_F32));
    }
    return exp_forward(c);
}

PLAIN_TEST(wrong_forwards) {
    tn_op op = *tn_op_named("exp");
    op.samples = "{once -1:1} [2, 3]";
    op.forward = imprecise_forward;
    check_finds(&op, "f32: ", "result 0, element 0: f32 gives");
    op.forward = large_dtypes_only;
    assert_int_equal(tn_op_check(&op), TN_OK);
    {
        TN_SCOPE;
        op.forward = leaking_forward;
        check_finds(&op, "dropped: ", "1 tensors stay alive");
    }
    for (int i = 0; i < losses; i++) {
        tn_release(lost[i]);
    }
}

TEST(nothing_runs_after_an_error) {
    tn_exp(tn_zeros(TN_DIMS(2), TN_I64));
    assert_int_equal(tn_op_check(tn_op_named("exp")), TN_EDTYPE);
    tn_error_clear();
    tn_op nameless = {0};
    check_finds(&nameless, "op_check: its name is NULL", "");
}

/* The tests' own comparison of numbers; NaN passes cmocka's. */
PLAIN_TEST(nan_is_near_nothing) {
    assert_true(is_near(1.0, 1.5, 0.5) && is_near(INFINITY, INFINITY, 0.0));
    assert_false(is_near(1.0, 1.0 + 1e-9, 1e-12));
    assert_false(is_near(NAN, NAN, 1.0) || is_near(0.0, NAN, INFINITY));
    assert_false(is_near(INFINITY, 1.0, 1e300) || is_near(INFINITY, -INFINITY, 1e300));
}

int main(void) {
    unsetenv("TERN_OP_CHECK"); /* the whole check is tested, not its brief form */
    return tests_run(NULL, NULL);
}
