/* Gradients that are computed directly in the leaf's buffer, without a copy, unless the program
 * could see the difference. */
#include "autograd/hooks.h"
#include "tests/support/test.h"

#include <string.h>

#include <tern/tern.h>

enum { N = 8 };

typedef struct net {
    tn_tensor *x, *w, *b;     /* (3, N), (N, N), (N) */
    tn_tensor *bucket, *view; /* the buffer of w's gradient, or NULL */
    tn_tensor *other;         /* another such buffer */
} net;

static net make_net(bool placed) {
    net n = {.bucket = tn_full(TN_DIMS(N * N + 32), 100.0, TN_F32)};
    tn_seed(3);
    n.x = tn_randn(TN_DIMS(3, N), TN_F32);
    n.w = tn_set_requires_grad(tn_randn(TN_DIMS(N, N), TN_F32), true);
    n.b = tn_set_requires_grad(tn_randn(TN_DIMS(N), TN_F32), true);
    n.view = tn_alias(n.bucket, 16, TN_DIMS(N, N));
    n.other = tn_full(TN_DIMS(N, N), 50.0, TN_F32);
    if (placed) { assert_int_equal(tn_set_grad_buffer(n.w, n.view), TN_OK); }
    return n;
}

/* w is used twice; `between` runs after the first of the two parts of its gradient. */
static void run_net(net *n, tn_grad_hook between) {
    TN_SCOPE;
    tn_tensor *h = tn_linear_op(n->x, n->w, n->b);
    if (between) { tn_on_grad(h, between, n); }
    tn_backward(tn_sum_all(tn_linear_op(h, n->w, n->b)));
    assert_int_equal(tn_error(), TN_OK);
}

/* ---- In one backward ------------------------------------------------------------------------- */

static const void *seen;

static tn_tensor *see_place(tn_tensor *grad, void *user) {
    seen = tn_data(grad);
    return NULL;
}

static tn_tensor *keep_it(tn_tensor *grad, void *user) {
    seen = tn_data(grad);
    *(tn_tensor **)user = tn_keep(grad);
    return NULL;
}

static void expect_untouched_around(const net *n) {
    assert_float_equal(tn_at(n->bucket, TN_DIMS(15)), 100.0, 0.0);
    assert_float_equal(tn_at(n->bucket, TN_DIMS(16 + N * N)), 100.0, 0.0);
}

TEST(made_in_its_place) {
    net n = make_net(true);
    tn__on_grad_observe(n.w, see_place, NULL);
    for (int i = 0; i < 2; i++) {
        seen = NULL;
        run_net(&n, NULL);
        assert_ptr_equal(seen, tn_data(n.view));
        assert_ptr_equal(tn_grad_of(n.w), n.view);
        expect_untouched_around(&n);
        tn_zero_grad(n.w);
    }
    run_net(&n, NULL);
    float first = (float)tn_at(n.view, TN_DIMS(1, 1));
    run_net(&n, NULL); /* the first one is not stale: this one is added */
    assert_ptr_not_equal(seen, tn_data(n.view));
    assert_float_equal(tn_at(n.view, TN_DIMS(1, 1)), 2 * first, 0.0);
}

/* A program's hook may keep the gradient, so it is not made in the buffer. */
TEST(kept_by_a_hook) {
    net n = make_net(true);
    tn_tensor *kept = NULL;
    tn_hook hook = tn_on_grad(n.w, keep_it, &kept);
    run_net(&n, NULL);
    assert_ptr_not_equal(seen, tn_data(n.view));
    float before = (float)tn_at(kept, TN_DIMS(2, 3));
    tn_remove_hook(n.w, hook);
    tn_zero_grad(n.w);
    tn_zero_(n.x);
    run_net(&n, NULL);
    assert_float_equal(tn_at(kept, TN_DIMS(2, 3)), before, 0.0);
    assert_true((float)tn_at(n.view, TN_DIMS(2, 3)) != before);
    tn_release(kept);
}

/* ---- Between two parts of a gradient --------------------------------------------------------- */

/* An inner backward adds to w's gradient before the outer one is done with it. */
static tn_tensor *runs_backward(tn_tensor *grad, void *user) {
    const net *n = user;
    bool before = tn_grad_mode_begin(true);
    tn_backward(tn_sum_all(tn_mul_scalar(tn_linear_op(n->x, n->w, n->b), 3.0)));
    tn_grad_mode_end(&before);
    return NULL;
}

static tn_tensor *sets_gradient(tn_tensor *grad, void *user) {
    const net *n = user;
    tn_set_grad(n->w, tn_full(TN_DIMS(N, N), 0.1, TN_F32));
    return NULL;
}

static tn_tensor *takes_buffer(tn_tensor *grad, void *user) {
    const net *n = user;
    tn_set_grad_buffer(n->w, NULL);
    return NULL;
}

static tn_tensor *moves_buffer(tn_tensor *grad, void *user) {
    const net *n = user;
    tn_set_grad_buffer(n->w, n->other);
    return NULL;
}

static void same_bits(tn_grad_hook between) {
    float grads[2][N * N];
    for (int placed = 0; placed < 2; placed++) {
        TN_SCOPE;
        net n = make_net(placed == 1);
        run_net(&n, between);
        assert_int_equal(tn_copy_out(tn_grad_of(n.w), grads[placed]), TN_OK);
        expect_untouched_around(&n);
    }
    assert_memory_equal(grads[0], grads[1], sizeof(grads[0]));
}

TEST(others_write_first) {
    same_bits(NULL);
    same_bits(runs_backward);
    same_bits(sets_gradient);
    same_bits(takes_buffer);
    same_bits(moves_buffer);
}

/* ---- Failure --------------------------------------------------------------------------------- */

static tn_tensor *raises_error(tn_tensor *grad, void *user) {
    tn_raise(TN_EVALUE, "this hook fails");
    return grad;
}

/* A backward that fails midway leaves nothing behind: the next one is right. */
TEST(after_a_failure) {
    float right[N * N], after[N * N];
    net n = make_net(true), m = make_net(true);
    run_net(&n, NULL);
    tn_copy_out(n.view, right);
    {
        TN_SCOPE;
        tn_tensor *h = tn_linear_op(m.x, m.w, m.b);
        tn_on_grad(h, raises_error, NULL);
        tn_backward(tn_sum_all(tn_linear_op(h, m.w, m.b)));
        assert_int_equal(tn_error(), TN_EVALUE);
        tn_error_clear();
    }
    assert_null(tn_grad_of(m.w));
    tn__on_grad_observe(m.w, see_place, NULL);
    tn_zero_grad(m.b);
    run_net(&m, NULL);
    assert_ptr_equal(seen, tn_data(m.view));
    tn_copy_out(m.view, after);
    assert_memory_equal(right, after, sizeof(right));
}
