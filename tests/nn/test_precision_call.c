/* Mixed precision around a call: what a forward sees, what the copies cost, and that nothing
 * (hooks, errors, a finished module) is left with a copy in a parameter's field. */

#include "tests/support/test.h"

#include "precision_net.h"

/* ---- What the forward sees ------------------------------------------------------------------- */

TEST(default_precision) {
    tn_precision p = tn_precision_defaults();
    assert_int_equal(p.param, TN_F32);
    assert_int_equal(p.compute, TN_BF16);
    assert_int_equal(p.reduce, TN_F32);
    assert_false(p.cast_output);
}

TEST(dtypes_inside) {
    static const tn_dtype kinds[] = {TN_BF16, TN_F16};
    for (int i = 0; i < 2; i++) {
        net n;
        net_init(&n);
        set_compute(&n, kinds[i]);
        assert_int_equal(tn_module_compute_dtype(&n.fc1, TN_F64), kinds[i]);
        TN_SCOPE;
        tn_tensor *y = tn_call(&n, input_batch(0));
        assert_int_equal(tn_dtype_of(y), kinds[i]);
        assert_int_equal(n.x, kinds[i]);
        assert_int_equal(n.weight, kinds[i]);
        assert_int_equal(n.norm_weight, kinds[i]);
        assert_int_equal(n.scaled, kinds[i]);
        expect_parameters(&n);
        tn_module_finish(&n);
    }
}

/* A child with its own policy, a child called directly, and results in f32. */
TEST(inner_policy_wins) {
    net n;
    net_init(&n);
    tn_precision policy = tn_precision_defaults();
    policy.cast_output = true;
    tn_module_set_precision(&n, policy);
    set_compute(&n.norm, TN_F32);
    TN_SCOPE;
    tn_tensor *y = tn_call(&n, input_batch(0));
    assert_int_equal(tn_dtype_of(y), TN_F32);
    assert_int_equal(n.weight, TN_BF16);
    assert_int_equal(n.norm_weight, TN_F32);
    assert_int_equal(n.hidden, TN_F32);
    assert_int_equal(tn_dtype_of(tn_call(&n.fc1, input_batch(0))), TN_BF16);
    assert_int_equal(tn_dtype_of(tn_call(&n.norm, tn_ones(TN_DIMS(HIDDEN), TN_BF16))), TN_F32);
    expect_parameters(&n);
    tn_backward(tn_sum_all(y));
    assert_non_null(tn_grad_of(n.norm.weight));
    assert_non_null(tn_grad_of(n.fc1.weight));
    tn_module_finish(&n);
}

TEST(parameters_are_converted) {
    net n;
    net_init(&n);
    tn_linear tied;
    tn_linear_init(&tied, IN, HIDDEN, tn_linear_defaults());
    tn_module_add(&n, "tied", &tied);
    tn_module_tie(&n, "tied.weight", "fc1.weight");
    tn_precision policy = TN_WITH(tn_precision, .param = TN_BF16, .compute = TN_BF16,
                                  .reduce = TN_F32, .output = TN_F32);
    assert_int_equal(tn_module_set_precision(&n, policy), TN_OK);
    assert_int_equal(tn_dtype_of(n.fc1.weight), TN_BF16);
    assert_ptr_equal(n.fc1.weight, tied.weight);
    assert_true(tn_requires_grad(n.fc1.weight));
    net_backward(&n, 0);
    assert_int_equal(tn_dtype_of(tn_grad_of(n.fc1.weight)), TN_F32);
    tn_module_finish(&n);
}

/* ---- What the copies cost -------------------------------------------------------------------- */

static int64_t copies_of(void *m) {
    return tn_module_count(m) * 2;
}

static int64_t allocations_of_call(net *n, tn_tensor *x) {
    int64_t before = memory_now().allocations;
    tn_drop(tn_call(n, x));
    return memory_now().allocations - before;
}

/* One copy for each change of the parameters; calls in between allocate no more than those of a
 * bf16 model. */
TEST(copies_are_kept) {
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_NO_GRAD;
    TN_SCOPE;
    tn_tensor *x = tn_cast(input_batch(0), TN_BF16);
    int64_t before = memory_now().allocated;
    tn_drop(tn_call(&n, x));
    int64_t held = memory_now().allocated - before;
    /* 7 parameters, rounded */
    assert_true(held >= copies_of(&n) && held <= copies_of(&n) + 7 * 256);
    int64_t again = allocations_of_call(&n, x);
    assert_int_equal(allocations_of_call(&n, x), again);
    assert_int_equal(memory_now().allocated - before, held);
    net plain; /* bf16 parameters and nothing to lend */
    net_init(&plain);
    tn_module_set_precision(&plain, TN_WITH(tn_precision, .param = TN_BF16, .compute = TN_BF16));
    assert_int_equal(again, allocations_of_call(&plain, x));
    tn_module_finish(&plain);
    tn_mul_scalar_(n.fc1.weight, 2.0); /* a change: the copy is filled again, in its place */
    tn_tensor *y = tn_call(&n.fc1, x);
    assert_int_equal(tn_dtype_of(y), TN_BF16);
    tn_tensor *want = tn_linear_op(x, tn_cast(n.fc1.weight, TN_BF16), tn_cast(n.fc1.bias, TN_BF16));
    assert_true(tn_item(tn_all(tn_eq(y, want))) != 0);
    tn_drop(want);
    tn_drop(y);
    tn_module_finish(&n);
}

static bool step_changes(const tn_entry *entry, void *user) {
    TN_SCOPE;
    tn_mul_scalar_(*entry->field, 0.5);
    return true;
}

/* Recorded calls share the copies: two calls, two graphs, one copy of each parameter. */
TEST(tapes_share_the_copies) {
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_SCOPE;
    tn_tensor *x = tn_cast(input_batch(0), TN_BF16);
    int64_t before = memory_now().allocated;
    tn_tensor *first = tn_call(&n, x);
    int64_t one = memory_now().allocated - before - copies_of(&n);
    tn_tensor *second = tn_call(&n, x);
    int64_t two = memory_now().allocated - before - copies_of(&n);
    assert_true(two <= 2 * one);
    {
        TN_NO_GRAD;
        tn_module_each(&n, (tn_walk){0}, step_changes, NULL);
        tn_drop(tn_call(&n, x));
    }
    tn_drop(second);
    tn_backward(tn_sum_all(first)); /* the weights that it read were overwritten */
    assert_error(TN_ESTATE, "was changed in place");
    tn_module_zero_grad(&n);
    tn_module_finish(&n);
}

/* ---- Hooks ----------------------------------------------------------------------------------- */

typedef struct seen {
    tn_dtype in, before, after, out;
} seen;

static tn_values look_before(tn_module *m, tn_values in, void *user) {
    seen *s = user;
    s->in = tn_dtype_of(in.v[0]);
    s->before = tn_dtype_of(((net *)m)->fc1.weight);
    return in;
}

static tn_values look_after(tn_module *m, tn_values in, tn_values out, void *user) {
    seen *s = user;
    s->after = tn_dtype_of(((net *)m)->fc1.weight);
    s->out = tn_dtype_of(out.v[0]);
    return out;
}

/* Hooks run outside of the policy: they see the caller's inputs, and the parameters. */
TEST(hooks_are_outside) {
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    seen s;
    tn_module_hook(&n, (tn_module_hooks){.before = look_before, .after = look_after, .user = &s});
    TN_SCOPE;
    tn_call(&n, input_batch(0));
    assert_int_equal(s.in, TN_F32);
    assert_int_equal(s.before, TN_F32);
    assert_int_equal(s.after, TN_F32);
    assert_int_equal(s.out, TN_BF16);
    tn_module_finish(&n);
}

/* ---- When something goes wrong --------------------------------------------------------------- */

TEST(errors_restore_the_fields) {
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_SCOPE;
    n.fails = true;
    assert_inert(tn_call(&n, input_batch(0)), TN_EVALUE, "this forward fails");
    expect_parameters(&n);
    n.fails = false;
    tn_module_set_recompute(&n, true);
    tn_tensor *y = tn_call(&n, input_batch(0));
    n.fails = true; /* the second time */
    tn_backward(tn_sum_all(y));
    assert_error(TN_EVALUE, "this forward fails");
    expect_parameters(&n);
    n.fails = false;
    tn_call(&n, tn_ones(TN_DIMS(2, IN + 1), TN_F32));
    assert_error(TN_ESHAPE, "linear");
    expect_parameters(&n);
    tn_call(&n, input_batch(0));
    tn_module_zero_grad(&n);
    tn_module_finish(&n);
}

/* Each allocation of a call fails once. */
TEST(no_memory) {
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    bool done = false;
    for (int64_t spare = 0; !done && spare < 1 << 20; spare += 1024) {
        TN_SCOPE;
        tn_tensor *x = input_batch(0);
        tn_memory_trim();
        tn_memory_set_limit(tn_memory().allocated + spare);
        done = !tn_is_inert(tn_call(&n, x));
        tn_memory_set_limit(0);
        if (!done) { assert_error(TN_ENOMEM, ""); }
        expect_parameters(&n);
    }
    assert_true(done);
    tn_module_finish(&n);
}

static void *to_finish;

static tn_tensor *finishing_forward(tn_module *self, tn_tensor *x) {
    tn_module_finish(to_finish);
    return tn_relu(x);
}

/* A module that is finished during its call frees its copies. */
TEST(finished_in_its_call) {
    tn_function f;
    net n;
    net_init(&n);
    tn_function_init(&f, "finisher", tn_relu);
    f.base.forward = finishing_forward;
    tn_sequential s;
    tn_sequential_init(&s);
    tn_sequential_add(&s, &n);
    tn_sequential_add(&s, &f);
    set_compute(&s, TN_BF16);
    to_finish = &n;
    TN_SCOPE;
    tn_call(&s, input_batch(0));
    tn_error_clear(); /* the sequential may raise an error */
    tn_module_finish(&s);
}

/* A module whose fields hold copies cannot be moved: neither the one that is called nor one inside
 * it. */
TEST(not_moved_in_its_call) {
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    void *const moved[] = {&n, &n.fc2};
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        n.moved = moved[i];
        tn_call(&n, input_batch(0));
        assert_error(TN_ESTATE, "is being called");
        expect_parameters(&n);
    }
    assert_int_equal(tn_module_to(&n, tn_default_device()), TN_OK);
    tn_module_finish(&n);
}

TEST(bad_policies) {
    net n;
    net_init(&n);
    tn_precision p = tn_precision_defaults();
    p.compute = TN_I64;
    assert_int_equal(tn_module_set_precision(&n, p), TN_EDTYPE);
    assert_error(TN_EDTYPE, "compute is i64");
    p = tn_precision_defaults();
    p.reduce = (tn_dtype)99;
    tn_module_set_precision(&n, p);
    assert_error(TN_EDTYPE, "reduce");
    assert_int_equal(tn_module_compute_dtype(&n, TN_F64), TN_F64);
    tn_module_set_precision(NULL, tn_precision_defaults());
    assert_error(TN_EVALUE, "NULL");
    tn_module_finish(&n);
}
