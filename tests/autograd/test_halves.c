/* A backward in halves: first the gradient of the input, later those of the parameters; the same
 * bits as at once, and nothing computed twice. */
#include "autograd/halves.h"
#include "tests/support/test.h"

#include <tern/tern.h>
#include <tern/sys/op.h>

#include <string.h>

enum { N = 24, ROWS = 5, PARAMS = 7 };

typedef struct net {
    tn_tensor *p[PARAMS]; /* two matrices with biases, a norm's weight and bias, a scale */
    bool recompute, inner;
    int forwards;
} net;

static net make_net(void) {
    tn_seed(1);
    net n = {0};
    for (int i = 0; i < PARAMS; i++) {
        tn_dims dims = i < 2 ? TN_DIMS(N, N) : TN_DIMS(N);
        n.p[i] = tn_set_requires_grad(tn_randn(dims, TN_F32), true);
    }
    return n;
}

static tn_values second_part(void *user, tn_values in) {
    net *n = user;
    tn_tensor *h = tn_linear_op(tn_dropout_op(in.v[0], 0.2), n->p[1], n->p[3]);
    return (tn_values){1, {tn_add(tn_gelu(h), in.v[0])}};
}

/* The scale comes as an input, and is a result: of a leaf, to which the input does not lead. */
static tn_values first_part(void *user, tn_values in) {
    net *n = user;
    n->forwards++;
    tn_tensor *h = tn_layer_norm_op(in.v[0], n->p[4], n->p[5], 1e-5);
    h = tn_mul(tn_linear_op(h, n->p[0], n->p[2]), in.v[1]);
    tn_values middle = {1, {tn_add(h, in.v[0])}};
    return n->inner ? tn_recompute(second_part, n, NULL, middle, n->p, PARAMS - 1)
                    : second_part(n, middle);
}

/* The first matrix is used once more, in turn: its gradient is a sum. */
static tn_tensor *net_loss(net *n, tn_tensor *x) {
    tn_values in = {2, {x, tn_tanh(n->p[6])}};
    tn_values out =
        n->recompute ? tn_recompute(first_part, n, NULL, in, n->p, PARAMS - 1) : first_part(n, in);
    tn_tensor *y = tn_matmul(tn_relu(out.v[0]), n->p[0]);
    return tn_sum_all(tn_mul(y, y));
}

static tn_tensor *input_of(int micro) {
    tn_seed(10 + (uint64_t)micro);
    return tn_set_requires_grad(tn_randn(TN_DIMS(ROWS, N), TN_F32), true);
}

enum { MICROS = 3 };

/* Gradients of the inputs, then of the parameters, which have no gradient at the end. */
static void take_grads(const net *n, tn_tensor *const *x, tn_tensor **grads) {
    for (int i = 0; i < MICROS + PARAMS; i++) {
        tn_tensor *leaf = i < MICROS ? x[i] : n->p[i - MICROS];
        assert_non_null(tn_grad_of(leaf));
        grads[i] = tn_copy(tn_grad_of(leaf));
        tn_zero_grad(leaf);
    }
}

/* As in a pipeline, second halves are put off. */
static void check_halves(net *n, tn_tensor **whole) {
    tn_tensor *x[MICROS], *grads[MICROS + PARAMS];
    tn__run *rest[MICROS];
    for (int i = 0; i < MICROS; i++) {
        x[i] = input_of(i);
        rest[i] = tn__backward_input(net_loss(n, x[i]), NULL, x[i]);
        assert_non_null(rest[i]);
        assert_true(tn_equal(tn_grad_of(x[i]), whole[i]));
        if (i > 0) { assert_int_equal(tn__backward_rest(rest[i - 1]), TN_OK); }
        for (int k = 0; k < PARAMS && i == 0; k++) {
            assert_null(tn_grad_of(n->p[k]));
        }
    }
    tn__backward_rest(rest[MICROS - 1]);
    take_grads(n, x, grads);
    for (int i = 0; i < MICROS + PARAMS; i++) {
        assert_true(tn_equal(grads[i], whole[i]));
    }
}

TEST(same_bits) {
    net n = make_net();
    tn_tensor *x[MICROS], *whole[MICROS + PARAMS];
    for (int i = 0; i < MICROS; i++) {
        x[i] = input_of(i);
        tn_backward(net_loss(&n, x[i]));
    }
    take_grads(&n, x, whole);
    for (int i = 0; i < 4; i++) {
        n.recompute = i & 1;
        n.inner = i & 2;
        n.forwards = 0;
        check_halves(&n, whole);
        assert_int_equal(n.forwards, n.recompute ? 2 * MICROS : MICROS); /* repeated once */
    }
}

/* ---- What runs when -------------------------------------------------------------------------- */

static int calls[4]; /* of the rule: with which inputs wanted */

static bool product_shape(tn_op_call *c) {
    return tn_op_out_like(c, 0);
}

static void product_backward(tn_op_grad *g) {
    calls[g->wants[0] + 2 * g->wants[1]]++;
    for (int i = 0; i < 2; i++) {
        if (g->wants[i]) { tn_op_give(g, i, tn_mul(g->dout[0], tn_op_saved_input(g, 1 - i))); }
    }
}

static tn_status product_forward(const tn_op_call *c) {
    return c->kernels->binary(c->ctx, TN_MUL, c->y[0], c->x[0], c->x[1]);
}

static const tn_op product_op = {.name = "product",
                                 .saves = TN_SAVES_INPUTS,
                                 .shape = product_shape,
                                 .forward = product_forward,
                                 .backward = product_backward};

static tn_tensor *apply_product(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&product_op, NULL, a, b);
}

static tn_tensor *count_grad(tn_tensor *grad, void *user) {
    ++*(int *)user;
    return NULL;
}

static void count_added(tn_tensor *leaf, void *user) {
    ++*(int *)user;
}

/* y = x w, twice, and of leaves alone: x's way is computed first, the rest later. */
TEST(each_once) {
    memset(calls, 0, sizeof(calls));
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F32), true);
    tn_tensor *w = tn_set_requires_grad(tn_full(TN_DIMS(3), 2, TN_F32), true);
    int of_result = 0, of_late = 0, of_leaf = 0, added = 0;
    tn_tensor *late = apply_product(w, w), *y = apply_product(apply_product(x, w), late);
    tn_on_grad(y, count_grad, &of_result);
    tn_on_grad(late, count_grad, &of_late);
    tn_on_grad(w, count_grad, &of_leaf);
    tn_on_accumulated(w, count_added, &added);
    tn__run *rest = tn__backward_input(tn_sum_all(y), NULL, x);
    assert_true(calls[1] == 2 && calls[2] == 0 && calls[3] == 0);
    assert_true(of_result == 1 && of_late == 0 && of_leaf == 0 && added == 0);
    tn__backward_rest(rest);
    assert_true(calls[1] == 2 && calls[2] == 2 && calls[3] == 1);
    assert_true(of_result == 1 && of_late == 1 && of_leaf == 1 && added == 1);
    assert_float_equal(tn_item(tn_sum_all(tn_grad_of(x))), 3 * 8, 0); /* w^3 */
    assert_float_equal(tn_item(tn_sum_all(tn_grad_of(w))), 3 * 12, 0);
}

/* An input that nothing leads to, or none: all is left. */
TEST(all_later) {
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        memset(calls, 0, sizeof(calls));
        tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F32), true);
        tn_tensor *other = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F32), true);
        tn_tensor *y = tn_sum_all(apply_product(w, w));
        tn__run *rest = tn__backward_input(y, NULL, i ? other : NULL);
        assert_int_equal(calls[3], 0);
        assert_int_equal(tn__backward_rest(rest), TN_OK);
        assert_true(calls[3] == 1 && !tn_grad_of(other) && tn_grad_of(w));
    }
}

/* ---- Memory and errors ----------------------------------------------------------------------- */

/* What only x's gradient needs is freed in between; and what is left undone, with its rest. */
TEST(frees_between) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F32), true);
    tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F32), true);
    int64_t before = tn_live_tensors();
    tn__run *rest;
    {
        TN_SCOPE;
        tn_tensor *y = tn_tanh(tn_tanh(tn_tanh(x))); /* each saves its result */
        rest = tn__backward_input(tn_sum_all(apply_product(y, w)), NULL, x);
    }
    /* the product's inputs, of which w is counted already, its gradient, x's gradient */
    assert_int_equal(tn_live_tensors(), before + 3);
    tn__rest_free(rest);
    assert_int_equal(tn_live_tensors(), before + 1);
    tn__rest_free(NULL);
}

TEST(wrong_between) {
    net n = make_net();
    tn_tensor *x = input_of(0), *loss = net_loss(&n, x);
    tn__run *rest = tn__backward_input(loss, NULL, x);
    tn_backward(loss);
    assert_error(TN_ESTATE, "a second time");
    tn__rest_free(rest);
    assert_null(tn__backward_input(tn_mul(x, x), NULL, x));
    assert_error(TN_ESHAPE, "must have one element");
    tn_tensor *other = tn_set_requires_grad(tn_ones(TN_DIMS(N), TN_F32), true);
    tn_tensor *y = tn_sum_all(apply_product(other, n.p[6]));
    assert_non_null(rest = tn__backward_input(y, NULL, other));
    {
        TN_NO_GRAD;
        tn_zero_(other);
    }
    tn__backward_rest(rest);
    assert_error(TN_ESTATE, "was changed in place");
    assert_null(tn_grad_of(n.p[6]));
}
