/* Mixed precision: where gradients arrive, how accurate they are, and that recompute changes no
 * bit. */
#include <math.h>

#include "tests/support/test.h"

#include "precision_net.h"

/* ---- Gradients ------------------------------------------------------------------------------- */

static bool grad_is_f32(const tn_entry *entry, void *user) {
    assert_non_null(tn_grad_of(*entry->field));
    assert_int_equal(tn_dtype_of(tn_grad_of(*entry->field)), TN_F32);
    return true;
}

typedef struct gradients {
    tn_tensor *at[16];
    int count;
} gradients;

static bool take_gradient(const tn_entry *entry, void *user) {
    gradients *g = user;
    g->at[g->count++] = tn_copy(tn_grad_of(*entry->field));
    return true;
}

static gradients gradients_of(void *m) {
    gradients g = {.count = 0};
    tn_module_each(m, (tn_walk){0}, take_gradient, &g);
    return g;
}

static double norm_of(tn_tensor *t) {
    return sqrt(tn_item(tn_sum_all(tn_square(tn_cast(t, TN_F64)))));
}

/* |a - b| / |b| of each, at most `most`. */
static void expect_close(const gradients *a, const gradients *b, double most) {
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        double off = norm_of(tn_sub(a->at[i], b->at[i])) / norm_of(b->at[i]);
        if (!(off <= most)) { fail_msg("gradient %d is off by %g", i, off); }
    }
}

static void expect_same(const gradients *a, const gradients *b) {
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        expect_same_bits(a->at[i], b->at[i]);
    }
}

TEST(close_to_f32) {
    gradients got[3];
    static const tn_dtype kinds[] = {TN_F32, TN_BF16, TN_F16};
    for (int i = 0; i < 3; i++) {
        net n;
        tn_seed(1);
        net_init(&n);
        set_compute(&n, kinds[i]);
        net_backward(&n, 0);
        tn_module_each(&n, (tn_walk){0}, grad_is_f32, NULL);
        got[i] = gradients_of(&n);
        tn_module_finish(&n);
    }
    expect_close(&got[1], &got[0], 0.02); /* bf16 has 8 bits: 0.4 % per rounding */
    expect_close(&got[2], &got[0], 0.0025);
}

/* Eight micro-batches: the sum equals the f32 sum of their gradients, to the last bit. */
TEST(accumulation_is_f32) {
    enum { MICRO = 8 };
    TN_SCOPE;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    gradients sum = {.count = 0};
    for (int i = 0; i < MICRO; i++) {
        net_backward(&n, i);
        gradients one = gradients_of(&n);
        for (int k = 0; k < one.count; k++) {
            sum.at[k] = i ? tn_add(sum.at[k], one.at[k]) : one.at[k];
        }
        sum.count = one.count;
        tn_module_zero_grad(&n);
    }
    for (int i = 0; i < MICRO; i++) {
        net_backward(&n, i);
    }
    gradients together = gradients_of(&n);
    expect_same(&together, &sum);
    tn_module_finish(&n);
}

/* y = w x + (w u): the same weight twice in one call. Its contributions are summed in f32. */
typedef struct twice {
    tn_module base;
    tn_linear a, b;
} twice;

static tn_values twice_forward(tn_module *self, tn_values in, void *context) {
    twice *m = (twice *)self;
    return tn_values_of(tn_call(&m->a, in.v[0]), tn_call(&m->b, in.v[1]));
}

static void twice_init(twice *m) {
    tn_linear_options options = TN_WITH(tn_linear, .bias = false);
    tn_module_init_values(m, "twice", twice_forward);
    tn_linear_init(&m->a, IN, OUT, options);
    tn_linear_init(&m->b, IN, OUT, options);
    tn_module_add(m, "a", &m->a);
    tn_module_add(m, "b", &m->b);
    tn_module_tie(m, "b.weight", "a.weight");
    set_compute(m, TN_BF16);
}

TEST(tied_parameters) {
    twice m = {0};
    twice_init(&m);
    TN_SCOPE;
    tn_tensor *x = tn_full(TN_DIMS(1, IN), 1.0, TN_F32),
              *u = tn_full(TN_DIMS(1, IN), 1.0 / 256, TN_F32);
    int64_t before = memory_now().allocated;
    {
        TN_NO_GRAD;
        TN_SCOPE;
        tn_call_values(&m, tn_values_of(x, u), NULL);
    }
    assert_true(memory_now().allocated - before <= IN * OUT * 2 + 256); /* one copy */
    tn_values out = tn_call_values(&m, tn_values_of(x, u), NULL);
    tn_tensor *dy[2] = {tn_ones(TN_DIMS(1, OUT), TN_BF16), tn_ones(TN_DIMS(1, OUT), TN_BF16)};
    assert_int_equal(tn_backward_from(out.v, dy, 2, false), TN_OK);
    /* 1 + 1/256 is a tie in bf16 and would be 1 */
    assert_true(tn_at(tn_grad_of(m.a.weight), TN_DIMS(0, 0)) == 1.0 + 1.0 / 256);
    assert_ptr_equal(m.a.weight, m.b.weight);
    expect_parameters(&m);
    tn_module_finish(&m);
}

/* A parameter of two modules with different policies. */
TEST(two_policies_one_parameter) {
    twice m = {0};
    twice_init(&m);
    set_compute(&m.b, TN_F32);
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(1, IN), TN_F32);
    tn_values out = tn_call_values(&m, tn_values_of(x, x), NULL);
    assert_int_equal(tn_dtype_of(out.v[0]), TN_BF16);
    assert_int_equal(tn_dtype_of(out.v[1]), TN_F32);
    tn_backward(tn_add(tn_sum_all(tn_cast(out.v[0], TN_F32)), tn_sum_all(out.v[1])));
    assert_true(tn_at(tn_grad_of(m.a.weight), TN_DIMS(0, 0)) == 2.0);
    expect_parameters(&m);
    tn_module_finish(&m);
}

TEST(frozen_parameters) {
    net n;
    net_init(&n);
    tn_module_requires_grad(&n.fc1, false);
    set_compute(&n, TN_BF16);
    net_backward(&n, 0);
    assert_null(tn_grad_of(n.fc1.weight));
    assert_non_null(tn_grad_of(n.fc2.weight));
    tn_module_finish(&n);
}

/* The gradient of a gradient goes through the copies too. */
TEST(second_derivative) {
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_SCOPE;
    tn_tensor *x = tn_set_requires_grad(input_batch(0), true), *dx;
    tn_tensor *y = tn_sum_all(tn_cast(tn_call(&n, x), TN_F32));
    tn_grad_options options = TN_WITH(tn_grad, .create_graph = true);
    assert_int_equal(tn_grad(&y, NULL, 1, &x, 1, &dx, options), TN_OK);
    tn_backward(tn_sum_all(tn_square(dx)));
    assert_int_equal(tn_dtype_of(tn_grad_of(n.fc1.weight)), TN_F32);
    assert_true(norm_of(tn_grad_of(n.fc1.weight)) > 0);
    tn_module_finish(&n);
}

/* ---- Recompute ------------------------------------------------------------------------------- */

TEST(recompute_is_bit_equal) {
    gradients got[3];
    for (int i = 0; i < 3; i++) { /* without, of the root, of a child */
        net n;
        tn_seed(1);
        net_init(&n);
        set_compute(&n, TN_BF16);
        tn_module_set_recompute(&n, i == 1);
        tn_module_set_recompute(&n.fc1, i == 2);
        net_backward(&n, 0);
        assert_int_equal(n.calls, i == 1 ? 2 : 1);
        assert_int_equal(n.weight, TN_BF16);
        expect_parameters(&n);
        got[i] = gradients_of(&n);
        tn_module_finish(&n);
    }
    expect_same(&got[1], &got[0]);
    expect_same(&got[2], &got[0]);
}

/* Tied weights inside recompute: one input of the node, not two. */
TEST(recompute_of_tied_weights) {
    tn_tensor *x = tn_full(TN_DIMS(1, IN), 1.0, TN_F32), *u = tn_full(TN_DIMS(1, IN), 0.5, TN_F32);
    tn_tensor *dy[2] = {tn_ones(TN_DIMS(1, OUT), TN_BF16), tn_ones(TN_DIMS(1, OUT), TN_BF16)};
    twice m = {0};
    twice_init(&m);
    tn_module_set_recompute(&m, true);
    tn_values out = tn_call_values(&m, tn_values_of(x, u), NULL);
    assert_int_equal(tn_backward_from(out.v, dy, 2, false), TN_OK);
    assert_true(tn_at(tn_grad_of(m.a.weight), TN_DIMS(0, 0)) == 1.5);
    tn_module_finish(&m);
}
