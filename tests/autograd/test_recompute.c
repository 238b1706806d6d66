/* Recompute: the same gradients to the bit, the same random numbers, less memory;
 * nested, and differentiated twice. */
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>
#include <tern/sys/tensor.h>

enum { N = 33 };

typedef struct net {
    tn_tensor *w1, *w2;
    int forwards, again;
    bool inner; /* w2's half is recomputed separately */
} net;

static tn_values second_half(void *user, tn_values in) {
    net *n = user;
    return (tn_values){1, {tn_gelu(tn_dropout_op(tn_matmul(in.v[0], n->w2), 0.3))}};
}

static tn_values net_forward(void *user, tn_values in) {
    net *n = user;
    n->forwards++;
    n->again += tn_in_recompute();
    tn_tensor *h = tn_tanh(tn_dropout_op(tn_matmul(in.v[0], n->w1), 0.3));
    tn_values middle = {1, {h}};
    middle =
        n->inner ? tn_recompute(second_half, n, NULL, middle, &n->w2, 1) : second_half(n, middle);
    return (tn_values){2, {tn_add(middle.v[0], in.v[0]), h}};
}

static void compute_grads(net *n, tn_tensor *x, bool recompute, tn_tensor **grads) {
    tn_seed(5);
    tn_zero_grad(n->w1);
    tn_zero_grad(n->w2);
    tn_zero_grad(x);
    tn_values in = {1, {x}};
    tn_tensor *params[2] = {n->w1, n->w2};
    tn_values out =
        recompute ? tn_recompute(net_forward, n, NULL, in, params, 2) : net_forward(n, in);
    /* draws after the block: the generator must be where it would be without recompute */
    tn_tensor *after = tn_dropout_op(out.v[1], 0.5);
    tn_backward(tn_add(tn_sum_all(tn_mul(out.v[0], out.v[0])), tn_sum_all(after)));
    assert_int_equal(tn_error(), TN_OK);
    tn_tensor *from[3] = {n->w1, n->w2, x};
    for (int i = 0; i < 3; i++) {
        grads[i] = tn_copy(tn_grad_of(from[i]));
    }
}

static net make_net(tn_tensor **x) {
    tn_seed(1);
    net n = {.w1 = tn_set_requires_grad(tn_randn(TN_DIMS(N, N), TN_F32), true),
             .w2 = tn_set_requires_grad(tn_randn(TN_DIMS(N, N), TN_F32), true)};
    *x = tn_set_requires_grad(tn_randn(TN_DIMS(4, N), TN_F32), true);
    return n;
}

TEST(bit_equal) {
    tn_tensor *x, *plain[3], *again[3], *nested[3];
    net n = make_net(&x);
    compute_grads(&n, x, false, plain);
    assert_int_equal(n.forwards, 1);
    compute_grads(&n, x, true, again);
    assert_int_equal(n.forwards, 3);
    assert_int_equal(n.again, 1);
    n.inner = true;
    compute_grads(&n, x, true, nested);
    for (int i = 0; i < 3; i++) {
        assert_true(tn_equal(plain[i], again[i]));
        assert_true(tn_equal(plain[i], nested[i]));
    }
}

static void count_call(tn_tensor *t, void *user) {
    ++*(int *)user;
}

/* Hooks on parameters run once, in the outer backward, after the sum over both calls of the block
 * and a tied use outside of it. */
TEST(leaf_hooks_fire_once) {
    tn_tensor *x;
    net n = make_net(&x);
    int fired = 0;
    tn_on_accumulated(n.w1, count_call, &fired);
    tn_tensor *params[2] = {n.w1, n.w2};
    tn_values in = {1, {x}};
    in.v[0] = tn_recompute(net_forward, &n, NULL, in, params, 2).v[0];
    in.v[0] = tn_recompute(net_forward, &n, NULL, in, params, 2).v[0];
    tn_backward(tn_sum_all(tn_matmul(in.v[0], n.w1)));
    assert_int_equal(tn_error(), TN_OK);
    assert_int_equal(fired, 1);
}

/* Between forward and backward only inputs and outputs are alive. */
TEST(keeps_only_inputs) {
    tn_tensor *x;
    net n = make_net(&x);
    tn_tensor *params[2] = {n.w1, n.w2};
    int64_t before = tn_live_tensors(), plain, again;
    {
        TN_SCOPE;
        tn_scope inner = tn_scope_begin(__FILE__, __LINE__);
        tn_tensor *y = tn_return(net_forward(&n, (tn_values){1, {x}}).v[0]);
        tn_scope_end(&inner);
        (void)y;
        plain = tn_live_tensors() - before;
    }
    {
        TN_SCOPE;
        tn_scope inner = tn_scope_begin(__FILE__, __LINE__);
        tn_tensor *y =
            tn_return(tn_recompute(net_forward, &n, NULL, (tn_values){1, {x}}, params, 2).v[0]);
        tn_scope_end(&inner);
        (void)y;
        again = tn_live_tensors() - before;
    }
    assert_int_equal(again, 1);
    assert_true(plain >= 4); /* what tanh, gelu and the second product save, and y */
    assert_int_equal(tn_live_tensors(), before);
}

static tn_values cube_input(void *user, tn_values in) {
    return (tn_values){1, {tn_mul(in.v[0], tn_mul(in.v[0], in.v[0]))}};
}

static tn_values recomputed_cube(void *user, tn_values in) {
    return tn_recompute(cube_input, user, NULL, in, NULL, 0);
}

TEST(second_derivative) {
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(5), TN_F64), true);
    tn_gradcheck_options o = TN_WITH(tn_gradcheck, .second = true);
    assert_int_equal(tn_gradcheck(recomputed_cube, NULL, (tn_values){1, {x}}, o), TN_OK);
}

static void note_freed(void *user) {
    ++*(int *)user;
}

static tn_values fails_again(void *user, tn_values in) {
    return (tn_values){1,
                       {tn_in_recompute() ? tn_add(in.v[0], tn_ones(TN_DIMS(3), TN_F64))
                                          : tn_mul(in.v[0], in.v[0])}};
}

TEST(owns_its_context) {
    int count_freed = 0;
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    tn_values in = {1, {x}};
    {
        TN_SCOPE;
        /* dropped without backward */
        tn_recompute(cube_input, &count_freed, note_freed, in, NULL, 0);
    }
    assert_int_equal(count_freed, 1);
    tn_tensor *y = tn_sum_all(tn_recompute(cube_input, &count_freed, note_freed, in, NULL, 0).v[0]);
    tn_backward(y);
    assert_int_equal(count_freed, 2);
    {
        TN_NO_GRAD;
        tn_recompute(cube_input, &count_freed, note_freed, in, NULL, 0);
    }
    assert_int_equal(count_freed, 3);
    tn_recompute(cube_input, &count_freed, note_freed, (tn_values){1, {tn_inert()}}, NULL, 0);
    assert_int_equal(count_freed, 4);
    tn_zero_grad(x);
    assert_int_equal(
        tn_backward(tn_sum_all(tn_recompute(fails_again, NULL, NULL, in, NULL, 0).v[0])),
        TN_ESHAPE);
    assert_null(tn_grad_of(x));
    tn_error_clear();
}

static tn_values gives_many(void *user, tn_values in) {
    int *n = user;
    tn_values out = {*n, {in.v[0]}};
    return out;
}

static tn_values gives_less(void *user, tn_values in) {
    int *calls = user;
    tn_values out = {(*calls)++ == 0 ? 2 : 1, {tn_tanh(in.v[0]), in.v[0]}};
    return out;
}

/* Functions that break the contract cause errors, not bad memory accesses. */
TEST(bad_forwards) {
    int many = TN_MAX_VALUES + 1, calls = 0;
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F64), true);
    tn_values in = {1, {x}};
    tn_recompute(NULL, NULL, NULL, in, NULL, 0);
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
    tn_recompute(gives_many, &many, NULL, in, NULL, 0);
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
    tn_values out = tn_recompute(gives_less, &calls, NULL, in, NULL, 0);
    assert_int_equal(tn_backward(tn_sum_all(out.v[0])), TN_ESTATE);
    assert_error(TN_ESTATE, "the first time");
    assert_null(tn_grad_of(x));
}

static tn_values recompute_again(void *user, tn_values in) {
    return tn_recompute(recompute_again, user, NULL, in, NULL, 0);
}

TEST(inside_itself) {
    tn_values in = {1, {tn_ones(TN_DIMS(2), TN_F32)}};
    for (int i = 0; i < 2; i++) {
        assert_inert(recompute_again(NULL, in).v[0], TN_ESTATE,
                     "recompute: 1000 forwards are running inside each other");
        tn_set_requires_grad(in.v[0], true);
    }
}
