/* The gradient check itself: it accepts correct rules, and finds wrong ones. */
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

/* A square whose rule can be made wrong, by the factor of the gradient. */
typedef struct scaled_args {
    double factor, second; /* correct: 2 and 1 */
} scaled_args;

static bool square_shape(tn_op_call *c) {
    return tn_op_float(c, 0) && tn_op_out_like(c, 0);
}

static tn_status square_forward(const tn_op_call *c) {
    return c->kernels->unary(c->ctx, TN_SQUARE, c->y[0], c->x[0], 0, 0);
}

static void square_backward(tn_op_grad *g) {
    const scaled_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0);
    tn_tensor *slope = tn_mul_scalar(x, args->factor);
    if (args->second != 1.0) { /* the right value, but wrong when differentiated again */
        slope = tn_add(tn_mul_scalar(slope, args->second),
                       tn_mul_scalar(tn_detach(slope), 1.0 - args->second));
    }
    tn_op_give(g, 0, tn_mul(g->dout[0], slope));
}

static const tn_op square_op = {
    .name = "a_square",
    .args_size = sizeof(scaled_args),
    .saves = TN_SAVES_INPUT(0),
    .shape = square_shape,
    .forward = square_forward,
    .backward = square_backward,
};

static tn_values square_inputs(void *user, tn_values in) {
    return (tn_values){
        2, {tn_apply1(&square_op, user, in.v[0]), tn_apply1(&square_op, user, in.v[in.n - 1])}};
}

static tn_status check_squares(double factor, double second_factor, bool second) {
    TN_SCOPE;
    scaled_args args = {factor, second_factor};
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(2, 3), TN_F64), true);
    tn_tensor *y = tn_set_requires_grad(tn_randn(TN_DIMS(4), TN_F64), true);
    tn_gradcheck_options o = TN_WITH(tn_gradcheck, .second = second);
    return tn_gradcheck(square_inputs, &args, (tn_values){2, {x, y}}, o);
}

TEST(accepts_right_rules) {
    assert_int_equal(check_squares(2.0, 1.0, false), TN_OK);
    assert_int_equal(check_squares(2.0, 1.0, true), TN_OK);
}

TEST(finds_wrong_rules) {
    assert_int_equal(check_squares(2.01, 1.0, false), TN_EVALUE);
    assert_non_null(strstr(tn_error_message(), "input 0, element 0"));
    tn_error_clear();
    assert_int_equal(check_squares(2.0, 0.9, false), TN_OK);
    assert_int_equal(check_squares(2.0, 0.9, true), TN_EVALUE);
    tn_error_clear();
}

static tn_values detach_input(void *user, tn_values in) {
    return (tn_values){1, {tn_detach(in.v[0])}};
}

TEST(refuses_what_it_cannot_check) {
    scaled_args args = {2.0, 1.0};
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
    assert_int_equal(
        tn_gradcheck(square_inputs, &args, (tn_values){1, {x}}, tn_gradcheck_defaults()),
        TN_EDTYPE);
    tn_error_clear();
    tn_tensor *y = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    assert_int_equal(tn_gradcheck(detach_input, NULL, (tn_values){1, {y}}, tn_gradcheck_defaults()),
                     TN_EVALUE);
    tn_error_clear();
    assert_int_equal(tn_gradcheck(NULL, NULL, (tn_values){1, {y}}, tn_gradcheck_defaults()),
                     TN_EVALUE);
    tn_error_clear();
}

static tn_values checks_itself(void *user, tn_values in) {
    tn_gradcheck(checks_itself, user, in, tn_gradcheck_defaults());
    return in;
}

TEST(inside_itself) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    checks_itself(NULL, (tn_values){1, {x}});
    assert_error(TN_ESTATE, "gradcheck: 1000 forwards are running inside each other");
}
