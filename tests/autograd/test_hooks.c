/* Hooks: on gradients, after accumulation, at the end of a backward; nested backwards. Data
 * parallelism is built on these. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static tn_tensor *scalar_leaf(double value) {
    return tn_set_requires_grad(tn_scalar(value, TN_F64), true);
}

static char order[256];

static void note_event(const char *text) {
    strncat(order, text, sizeof order - strlen(order) - 1);
}

static tn_tensor *doubles_gradient(tn_tensor *grad, void *user) {
    note_event(user);
    return tn_mul_scalar(grad, 2.0);
}

static tn_tensor *looks_at_gradient(tn_tensor *grad, void *user) {
    note_event(user);
    return NULL;
}

static void notes_accumulated(tn_tensor *t, void *user) {
    assert_non_null(tn_grad_of(t));
    note_event(user);
}

static void at_end(void *user) {
    note_event(user);
}

TEST(replace_gradients) {
    order[0] = 0;
    tn_tensor *x = scalar_leaf(3.0), *y = tn_mul_scalar(x, 5.0);
    tn_on_grad(y, doubles_gradient, "y");
    tn_hook gone = tn_on_grad(y, doubles_gradient, "!");
    tn_on_grad(x, doubles_gradient, "x");
    tn_on_grad(x, looks_at_gradient, "l");
    tn_remove_hook(y, gone);
    tn_backward(tn_mul_scalar(y, 1.0));
    assert_float_equal(tn_item(tn_grad_of(x)), 20.0, 0.0);
    assert_string_equal(order, "yxl");
}

/* A leaf that is used several times is finished once, after its last contribution: a later layer's
 * weight before an earlier one's. */
TEST(after_accumulation) {
    order[0] = 0;
    tn_tensor *w1 = scalar_leaf(2.0), *w2 = scalar_leaf(3.0), *x = tn_scalar(1.0, TN_F64);
    tn_on_accumulated(w1, notes_accumulated, "1");
    tn_hook second = tn_on_accumulated(w2, notes_accumulated, "2");
    tn_tensor *h = tn_mul(x, w1);
    tn_tensor *y = tn_mul(tn_mul(tn_mul(h, w2), w2), w2);
    tn_backward(y);
    assert_string_equal(order, "21");
    assert_float_equal(tn_item(tn_grad_of(w2)), 2.0 * 3.0 * 9.0, 1e-12);
    tn_remove_hook(w2, second);
    order[0] = 0;
    tn_backward(tn_mul(w1, w2));
    assert_string_equal(order, "1");
}

static tn_tensor *queues_callback(tn_tensor *grad, void *user) {
    assert_int_equal(tn_after_backward(at_end, user), TN_OK);
    return NULL;
}

/* A hook runs its own backward, over the same leaf, inside the outer one. */
static tn_tensor *nests_backward(tn_tensor *grad, void *user) {
    assert_true(tn_in_backward());
    tn_tensor *x = user;
    bool before = tn_grad_mode_begin(true);
    tn_tensor *y = tn_mul(x, x), *result;
    tn_on_grad(y, queues_callback, "i");
    tn_grad_options o = tn_grad_defaults();
    assert_int_equal(tn_grad(&y, NULL, 1, &x, 1, &result, o), TN_OK);
    tn_grad_mode_end(&before);
    assert_float_equal(tn_item(result), 2.0 * tn_item(x), 1e-12);
    note_event("n");
    return NULL;
}

TEST(runs_nest) {
    order[0] = 0;
    tn_tensor *x = scalar_leaf(3.0), *y = tn_mul(x, x);
    tn_on_accumulated(x, notes_accumulated, "a");
    tn_on_grad(y, nests_backward, x);
    tn_on_grad(y, queues_callback, "e");
    tn_backward(y);
    assert_float_equal(tn_item(tn_grad_of(x)), 6.0, 1e-12);
    assert_string_equal(order, "naie"); /* queued calls wait for the end of the outermost run */
    assert_false(tn_in_backward());
    assert_int_equal(tn_after_backward(at_end, "x"), TN_ESTATE);
    tn_error_clear();
}

static tn_tensor *raises_error(tn_tensor *grad, void *user) {
    tn_raise(TN_EVALUE, "this hook fails");
    return grad;
}

static tn_tensor *wrong_shape(tn_tensor *grad, void *user) {
    return tn_zeros(TN_DIMS(7), TN_F64);
}

TEST(errors_in_hooks) {
    int64_t before = tn_live_tensors();
    {
        TN_SCOPE;
        order[0] = 0;
        tn_tensor *x = scalar_leaf(3.0), *y = tn_mul(x, x);
        tn_on_grad(y, queues_callback, "e");
        tn_on_grad(y, raises_error, NULL);
        assert_int_equal(tn_backward(tn_mul_scalar(y, 1.0)), TN_EVALUE);
        assert_null(tn_grad_of(x));
        assert_string_equal(order, "e"); /* queued calls still run */
        tn_error_clear();
        tn_tensor *z = tn_mul(x, x);
        tn_on_grad(z, wrong_shape, NULL);
        assert_int_equal(tn_backward(tn_mul_scalar(z, 1.0)), TN_ESHAPE);
        tn_error_clear();
        tn_on_grad(x, wrong_shape, NULL);
        assert_int_equal(tn_backward(tn_mul(x, x)), TN_ESHAPE);
        assert_null(tn_grad_of(x));
        tn_error_clear();
    }
    assert_int_equal(tn_live_tensors(), before);
}

static tn_hook self;

static void removes_itself(tn_tensor *t, void *user) {
    tn_remove_hook(t, self);
    note_event("r");
}

TEST(hook_removes_itself) {
    order[0] = 0;
    tn_tensor *x = scalar_leaf(3.0);
    self = tn_on_accumulated(x, removes_itself, NULL);
    tn_on_accumulated(x, notes_accumulated, "a");
    tn_backward(tn_mul(x, x));
    tn_backward(tn_mul(x, x));
    assert_string_equal(order, "raa");
}

static tn_tensor *hooked;
static tn_hook victim;

static tn_tensor *removes_victim(tn_tensor *grad, void *user) {
    note_event(user);
    tn_remove_hook(hooked, victim);
    return NULL;
}

static void removes_victim_after(tn_tensor *t, void *user) {
    note_event(user);
    tn_remove_hook(t, victim);
}

/* A hook removes the next one: of a leaf, of a result, after accumulation. */
TEST(hook_removes_the_next) {
    order[0] = 0;
    tn_tensor *x = hooked = scalar_leaf(3.0);
    tn_on_grad(x, removes_victim, "a");
    victim = tn_on_grad(x, looks_at_gradient, "!");
    tn_on_grad(x, looks_at_gradient, "b");
    tn_backward(tn_mul(x, x));
    tn_tensor *y = hooked = tn_mul(scalar_leaf(2.0), scalar_leaf(2.0));
    tn_on_grad(y, removes_victim, "c");
    victim = tn_on_grad(y, looks_at_gradient, "!");
    tn_backward(tn_mul(y, y));
    tn_tensor *z = scalar_leaf(3.0);
    tn_on_accumulated(z, removes_victim_after, "d");
    victim = tn_on_accumulated(z, notes_accumulated, "!");
    tn_on_accumulated(z, notes_accumulated, "e");
    tn_backward(tn_mul(z, z));
    assert_string_equal(order, "abcde");
}

static tn_tensor *gives_replacement(tn_tensor *grad, void *user) {
    return user;
}

/* The tensor that a hook returns may belong to the program: nothing is added to it in place. */
TEST(replacement_stays_as_it_is) {
    tn_tensor *mine;
    {
        TN_SCOPE;
        mine = tn_keep(tn_scalar(10.0, TN_F64));
    }
    TN_SCOPE;
    tn_tensor *x = scalar_leaf(3.0);
    tn_on_grad(x, gives_replacement, mine);
    for (int i = 0; i < 3; i++) {
        tn_backward(tn_mul(x, x));
    }
    assert_float_equal(tn_item(tn_grad_of(x)), 30.0, 0.0);
    assert_float_equal(tn_item(mine), 10.0, 0.0);
    tn_release(mine);
}

static tn_tensor *lets_go(tn_tensor *grad, void *user) {
    tn_tensor **last = user;
    tn_release(*last);
    *last = NULL;
    return NULL;
}

/* A hook drops the last reference to the loss: the backward still has its graph. */
TEST(hook_releases_the_root) {
    tn_tensor *x = scalar_leaf(3.0), *loss;
    {
        TN_SCOPE;
        tn_tensor *y = tn_mul(x, x);
        loss = tn_keep(tn_mul(y, y));
        tn_on_grad(loss, lets_go, &loss);
    }
    tn_backward(loss);
    assert_null(loss);
    assert_float_equal(tn_item(tn_grad_of(x)), 108.0, 0.0);
}

/* Of the nodes that are ready, the one created last runs first, in whatever order they became
 * ready. */
TEST(the_youngest_runs_first) {
    static const int uses[][5] = {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}};
    static char *const names[] = {"a", "b", "c", "d", "e"};
    for (int k = 0; k < 3; k++) {
        TN_SCOPE;
        order[0] = 0;
        tn_tensor *x = scalar_leaf(3.0), *made[5], *used[5];
        for (int i = 0; i < 5; i++) {
            made[i] = tn_mul_scalar(x, 2.0);
            tn_on_grad(made[i], looks_at_gradient, names[i]);
        }
        for (int i = 0; i < 5; i++) {
            used[i] = made[uses[k][i]];
        }
        tn_backward(tn_sum_all(tn_stack(used, 5, 0)));
        assert_string_equal(order, "edcba");
    }
}

/* ---- Endless recursion ----------------------------------------------------------------------- */

static void square_backward(void *user) {
    bool before = tn_grad_mode_begin(true);
    tn_backward(tn_mul(user, user));
    tn_grad_mode_end(&before);
}

static tn_tensor *runs_backward(tn_tensor *grad, void *user) {
    square_backward(user);
    return NULL;
}

static tn_tensor *runs_backward_at_the_end(tn_tensor *grad, void *user) {
    tn_after_backward(square_backward, user);
    return NULL;
}

TEST(hooks_that_run_backward) {
    tn_grad_hook hooks[] = {runs_backward, runs_backward_at_the_end};
    for (int i = 0; i < 2; i++) {
        tn_tensor *x = scalar_leaf(2.0);
        tn_hook id = tn_on_grad(x, hooks[i], x);
        square_backward(x);
        assert_error(TN_ESTATE, "100 backward runs are inside each other");
        assert_false(tn_in_backward());
        tn_remove_hook(x, id);
        tn_zero_grad(x);
        square_backward(x); /* it left nothing behind */
        assert_true(tn_item(tn_grad_of(x)) == 4.0);
    }
}
