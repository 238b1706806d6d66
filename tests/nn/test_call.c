/* The bracket around a forward: which tensors outlive it, hooks and their order, backward hooks,
 * recompute, module paths in errors. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- Helpers --------------------------------------------------------------------------------- */

static char trace[2048]; /* what happened, in order */

/* A set-up function: clears the trace. */
static int begin_trace(void **state) {
    trace[0] = 0;
    return test_begin(state);
}
#define TRACED(name) TEST_WITH(name, begin_trace, test_end)

static void note_text(const char *text) {
    size_t used = strlen(trace);
    snprintf(trace + used, sizeof(trace) - used, "%s%s ", text, tn_in_recompute() ? "'" : "");
}

static void expect_trace(const char *want) {
    assert_string_equal(trace, want);
    trace[0] = 0;
}

/* ---- A small model: two layers with dropout between ------------------------------------------ */

typedef struct net {
    tn_module base;
    tn_linear fc1, fc2;
    tn_dropout drop;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    note_text("forward");
    return tn_call(&n->fc2, tn_call(&n->drop, tn_tanh(tn_call(&n->fc1, x))));
}

static void net_init(net *n) {
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->fc1, 5, 8, tn_linear_defaults());
    tn_linear_init(&n->fc2, 8, 5, tn_linear_defaults());
    tn_dropout_init(&n->drop, 0.5);
    tn_module_add(n, "fc1", &n->fc1);
    tn_module_add(n, "fc2", &n->fc2);
    tn_module_add(n, "drop", &n->drop);
}

/* Several inputs and outputs: (a, b or none) -> (a, 2 a + b), with a context that counts calls. */
static tn_values pair_forward(tn_module *self, tn_values in, void *context) {
    if (context) { ++*(int *)context; }
    tn_tensor *twice = tn_mul_scalar(in.v[0], 2.0);
    return tn_values_of(in.v[0], in.n > 1 && in.v[1] ? tn_add(twice, in.v[1]) : twice);
}

static tn_tensor *random_leaf(tn_dims dims) {
    return tn_set_requires_grad(tn_randn(dims, TN_F32), true);
}

/* ---- What comes out -------------------------------------------------------------------------- */

static tn_tensor *wasteful_forward(tn_module *self, tn_tensor *x) {
    for (int i = 0; i < 10; i++) {
        tn_mul_scalar(x, i);
    }
    return tn_add_scalar(x, 1.0);
}

TRACED(only_results_come_out) {
    tn_module m;
    tn_module_init(&m, "wasteful", wasteful_forward);
    tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32);
    int64_t before = tn_live_tensors();
    tn_tensor *y = tn_call(&m, x);
    assert_int_equal(tn_live_tensors(), before + 1);
    assert_true(tn_item(tn_sum_all(y)) == 6.0);
    tn_module_finish(&m);
}

TRACED(values_and_context) {
    tn_module m;
    tn_module_init_values(&m, "pair", pair_forward);
    tn_tensor *a = tn_ones(TN_DIMS(3), TN_F32);
    int calls = 0;
    tn_values out = tn_call_values(&m, tn_values_of(a, a), &calls);
    assert_int_equal(out.n, 2);
    assert_ptr_equal(out.v[0], a); /* an input that is returned stays the same tensor */
    assert_true(tn_item(tn_sum_all(out.v[1])) == 9.0);
    out = tn_call_values(&m, (tn_values){2, {a, NULL}}, &calls); /* an absent one */
    assert_true(tn_item(tn_sum_all(out.v[1])) == 6.0);
    assert_int_equal(calls, 2);

    assert_inert(tn_call(&m, a), TN_EVALUE, "pair returns 2 values");
    out = tn_call_values(&m, (tn_values){9, {a}}, &calls);
    assert_error(TN_EVALUE, "9 inputs");
    assert_int_equal(out.n, 0);
    for (int i = 0; i < TN_MAX_VALUES; i++) {
        assert_true(tn_is_inert(out.v[i]));
    }
    assert_int_equal(calls, 2);
    tn_module_finish(&m);
}

static tn_tensor *null_forward(tn_module *self, tn_tensor *x) {
    return NULL;
}

static tn_values silent_forward(tn_module *self, tn_values in, void *context) {
    return (tn_values){0};
}

TRACED(wrong_values) {
    tn_tensor *x = tn_ones(TN_DIMS(2), TN_F32);
    tn_module m;
    tn_module_init(&m, "null", null_forward);
    assert_inert(tn_call(&m, x), TN_EVALUE, "(in null): null: result 0 of the forward is NULL");
    assert_inert(tn_call(&m, NULL), TN_EVALUE, "NULL");
    tn_call_values(&m, tn_values_of(x, x), NULL);
    assert_error(TN_EVALUE, "2 inputs");
    tn_module_finish(&m);
    tn_module_init_values(&m, "silent", silent_forward);
    assert_int_equal(tn_call_values(&m, tn_values_of(x, NULL), NULL).n, 0);
    assert_int_equal(tn_error(), TN_OK);
    assert_inert(tn_call(&m, x), TN_EVALUE, "returns 0 values");
    tn_module_finish(&m);
}

TRACED(paths_in_errors) {
    net n;
    net_init(&n);
    tn_sequential all;
    tn_sequential_init(&all);
    tn_sequential_add(&all, &n);
    tn_tensor *y = tn_call(&all, tn_ones(TN_DIMS(2, 6), TN_F32));
    assert_true(tn_is_inert(y));
    assert_true(tn_is_inert(tn_call(&all, y))); /* inert in, inert out */
    assert_error(TN_ESHAPE, "(in sequential.0.fc1): linear: ");
    tn_module_set_recompute(&n, true);
    tn_call(&all, tn_ones(TN_DIMS(2, 6), TN_F32));
    assert_error(TN_ESHAPE, "(in sequential.0.fc1): linear: ");
    tn_module_finish(&all);
}

/* ---- Forward hooks --------------------------------------------------------------------------- */

typedef struct tag {
    const char *name;
    tn_hook remove; /* this hook, while it runs */
    int freed;
} tag;

static void note_tag(const tag *t, const char *what) {
    char text[64];
    snprintf(text, sizeof(text), "%.30s.%.30s", t->name, what);
    note_text(text);
}

static tn_values note_before(tn_module *m, tn_values in, void *user) {
    tag *t = user;
    note_tag(t, "before");
    if (t->remove) {
        tn_module_unhook(m, t->remove);
        t->remove = 0;
    }
    return in;
}

static tn_values note_after(tn_module *m, tn_values in, tn_values out, void *user) {
    note_tag(user, "after");
    return out;
}

static void backward_before(tn_module *m, void *user) {
    assert_true(tn_in_backward());
    note_tag(user, "backward");
}

static void backward_after(tn_module *m, tn_values in_grads, void *user) {
    char text[64];
    snprintf(text, sizeof(text), "done%d%s", in_grads.n,
             in_grads.n > 0 && in_grads.v[0] ? "+" : "-");
    note_tag(user, text);
}

static void free_tag(void *user) {
    ((tag *)user)->freed++;
}

static tn_hook hook_all(void *m, tag *t) {
    return tn_module_hook(m, (tn_module_hooks){note_before, note_after, backward_before,
                                               backward_after, t, free_tag});
}

TRACED(order_and_removal) {
    net n;
    net_init(&n);
    tag a = {.name = "a"}, b = {.name = "b"}, inner = {.name = "fc1"};
    tn_hook ha = hook_all(&n, &a), hb = hook_all(&n, &b);
    hook_all(&n.fc1, &inner);
    assert_true(ha != 0 && hb != 0 && ha != hb);
    tn_tensor *x = tn_ones(TN_DIMS(2, 5), TN_F32);
    {
        TN_NO_GRAD;
        tn_call(&n, x);
    }
    expect_trace("a.before b.before forward fc1.before fc1.after a.after b.after ");
    a.remove = ha; /* a hook removes itself */
    {
        TN_NO_GRAD;
        tn_call(&n, x);
        expect_trace("a.before b.before forward fc1.before fc1.after b.after ");
        assert_int_equal(a.freed, 1);
        tn_module_unhook(&n, hb);
        assert_int_equal(b.freed, 1);
        tn_module_unhook(&n, hb); /* a second time does nothing */
        tn_call(&n, x);
        expect_trace("forward fc1.before fc1.after ");
    }
    tn_module_finish(&n);
    assert_int_equal(inner.freed, 1);
}

static tn_values double_input(tn_module *m, tn_values in, void *user) {
    in.v[0] = tn_mul_scalar(in.v[0], 2.0);
    return in;
}

static tn_values add_one(tn_module *m, tn_values in, tn_values out, void *user) {
    out.v[0] = tn_add_scalar(out.v[0], 1.0);
    return out;
}

static tn_values no_input(tn_module *m, tn_values in, void *user) {
    return (tn_values){0};
}

static tn_tensor *return_input(tn_tensor *x) {
    return x;
}

TRACED(hooks_replace_values) {
    tn_function f;
    tn_function_init(&f, "f", return_input);
    tn_module_hook(&f, (tn_module_hooks){.before = double_input});
    tn_module_hook(&f, (tn_module_hooks){.after = add_one});
    tn_tensor *x = random_leaf(TN_DIMS(3));
    int64_t had = tn_live_tensors();
    tn_tensor *y = tn_call(&f, x);
    {
        TN_NO_GRAD;
        assert_true(tn_equal(y, tn_add_scalar(tn_mul_scalar(x, 2.0), 1.0)));
    }
    tn_backward(tn_sum_all(y));
    assert_true(tn_item(tn_sum_all(tn_grad_of(x))) == 6.0);
    assert_true(tn_live_tensors() - had < 10);
    tn_module_hook(&f, (tn_module_hooks){.before = no_input});
    assert_inert(tn_call(&f, x), TN_EVALUE, "0 inputs");
    assert_int_equal(tn_module_hook(&f, (tn_module_hooks){0}), 0);
    assert_error(TN_EVALUE, "all hooks are NULL");
    tn_module_finish(&f);
}

/* ---- Backward hooks -------------------------------------------------------------------------- */

TRACED(backward_order) {
    net n;
    net_init(&n);
    tag outer = {.name = "n"}, first = {.name = "1"}, second = {.name = "2"};
    hook_all(&n, &outer);
    hook_all(&n.fc1, &first);
    hook_all(&n.fc2, &second);
    tn_tensor *x = random_leaf(TN_DIMS(2, 5)), *loss = tn_sum_all(tn_call(&n, x));
    expect_trace("n.before forward 1.before 1.after 2.before 2.after n.after ");
    tn_backward_from(&loss, NULL, 1, true);
    expect_trace("n.backward 2.backward 2.done1+ 1.backward 1.done1+ n.done1+ ");
    tn_backward(loss); /* a second time through the same graph */
    expect_trace("n.backward 2.backward 2.done1+ 1.backward 1.done1+ n.done1+ ");
    tn_module_finish(&n);
}

/* If no input requires a gradient, a module's backward ends when the whole backward ends. */
TRACED(inputs_without_gradient) {
    net n;
    net_init(&n);
    tag outer = {.name = "n"}, first = {.name = "1"};
    hook_all(&n, &outer);
    hook_all(&n.fc1, &first);
    tn_tensor *x = tn_ones(TN_DIMS(2, 5), TN_F32);
    tn_backward(tn_sum_all(tn_call(&n, x)));
    expect_trace(
        "n.before forward 1.before 1.after n.after n.backward 1.backward n.done1- 1.done1- ");
    tn_call(&n, x); /* recorded and dropped */
    expect_trace("n.before forward 1.before 1.after n.after ");
    tn_module_finish(&n);
}

static tn_tensor *seen_grads[2];

static void keep_grads(tn_module *m, tn_values in_grads, void *user) {
    assert_int_equal(in_grads.n, 2);
    for (int i = 0; i < 2; i++) {
        seen_grads[i] = tn_keep(in_grads.v[i]);
    }
    note_text("done");
}

TRACED(several_inputs_and_outputs) {
    tn_module m;
    tn_module_init_values(&m, "pair", pair_forward);
    tag t = {.name = "m"};
    tn_module_hook(&m, (tn_module_hooks){.backward_after = keep_grads});
    tn_module_hook(&m, (tn_module_hooks){.backward_before = backward_before, .user = &t});
    tn_tensor *a = random_leaf(TN_DIMS(3)), *b = random_leaf(TN_DIMS(3));
    tn_values out = tn_call_values(&m, tn_values_of(a, b), NULL);
    tn_backward(tn_add(tn_sum_all(out.v[0]), tn_sum_all(tn_mul_scalar(out.v[1], 10.0))));
    expect_trace("m.backward done ");
    assert_true(tn_item(tn_sum_all(seen_grads[0])) == 3 * 21.0);
    assert_true(tn_item(tn_sum_all(seen_grads[1])) == 3 * 10.0);
    assert_true(tn_equal(tn_grad_of(a), seen_grads[0]));
    for (int i = 0; i < 2; i++) {
        tn_release(seen_grads[i]);
    }
    /* only the first output is used: b gets nothing */
    out = tn_call_values(&m, tn_values_of(a, b), NULL);
    tn_backward(tn_sum_all(out.v[0]));
    expect_trace("m.backward done ");
    assert_non_null(seen_grads[0]);
    assert_null(seen_grads[1]);
    tn_release(seen_grads[0]);
    tn_module_finish(&m);
}

static tn_tensor *fail_backward(tn_tensor *grad, void *user) {
    tn_raise(TN_EVALUE, "a failing hook");
    return NULL;
}

static tn_tensor *trap_forward(tn_module *self, tn_tensor *x) {
    tn_tensor *h = tn_tanh(x);
    tn_on_grad(h, fail_backward, NULL);
    return tn_mul_scalar(h, 2.0);
}

/* Each backward_before has its backward_after, even if the run fails in between. */
TRACED(failing_backward) {
    tn_module m;
    tn_module_init(&m, "trap", trap_forward);
    tag t = {.name = "m"};
    hook_all(&m, &t);
    tn_backward(tn_sum_all(tn_call(&m, random_leaf(TN_DIMS(2, 5)))));
    assert_error(TN_EVALUE, "a failing hook");
    expect_trace("m.before m.after m.backward m.done1- ");
    tn_module_finish(&m);
}

TRACED(finished_before_backward) {
    net n;
    net_init(&n);
    tag t = {.name = "n"};
    hook_all(&n, &t);
    tn_tensor *x = random_leaf(TN_DIMS(2, 5)), *loss = tn_sum_all(tn_call(&n, x));
    tn_module_finish(&n);
    trace[0] = 0;
    tn_backward(loss); /* the graph has what it needs; the hooks are gone */
    expect_trace("");
    assert_non_null(tn_grad_of(x));
    net_init(&n);
    tn_module_set_recompute(&n, true);
    loss = tn_sum_all(tn_call(&n, x));
    tn_module_finish(&n);
    tn_backward(loss);
    assert_error(TN_ESTATE, "finished before backward");
}

static tn_values finish_before(tn_module *m, tn_values in, void *user) {
    tn_module_finish(m);
    return in;
}

TRACED(finished_in_a_hook) {
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = o.context = 5, o.layers = o.heads = 1, o.width = 4;
    tn_gpt gpt;
    tn_gpt_init(&gpt, o);
    tn_module_hook(&gpt, (tn_module_hooks){.before = finish_before});
    assert_inert(tn_call(&gpt, tn_zeros(TN_DIMS(1, 3), TN_I64)), TN_ESTATE, "is finished");
}

/* ---- Recompute ------------------------------------------------------------------------------- */

static bool copy_grad(const tn_entry *entry, void *user) {
    tn_tensor ***next = user;
    *(*next)++ = tn_copy(tn_grad_of(*entry->field));
    return true;
}

/* The gradients of all parameters and of x; returns how many. */
static int copy_gradients(void *m, tn_tensor *x, tn_tensor **grads) {
    tn_seed(9);
    tn_module_zero_grad(m);
    tn_zero_grad(x);
    tn_backward(tn_sum_all(tn_square(tn_call(m, x))));
    tn_tensor **next = grads;
    tn_module_each(m, (tn_walk){0}, copy_grad, &next);
    *next++ = tn_copy(tn_grad_of(x));
    return (int)(next - grads);
}

static void expect_equal_gradients(void *m, tn_tensor *x, tn_module *const *recomputed, int n) {
    TN_SCOPE;
    tn_tensor *plain[64], *again[64];
    int count = copy_gradients(m, x, plain);
    for (int i = 0; i < n; i++) {
        tn_module_set_recompute(recomputed[i], true);
    }
    assert_int_equal(copy_gradients(m, x, again), count);
    for (int i = 0; i < count; i++) {
        assert_true(tn_equal(plain[i], again[i]));
    }
    for (int i = 0; i < n; i++) {
        tn_module_set_recompute(recomputed[i], false);
    }
}

TRACED(recompute_is_bit_equal) {
    net n;
    net_init(&n);
    tn_tensor *x = random_leaf(TN_DIMS(4, 5));
    expect_equal_gradients(&n, x, (tn_module *[]){&n.base}, 1);
    expect_trace("forward forward forward' ");
    /* nested */
    expect_equal_gradients(&n, x, (tn_module *[]){&n.base, &n.fc1.base, &n.drop.base}, 3);
    tn_sequential twice;
    tn_sequential_init(&twice);
    tn_function again;
    tn_function_init(&again, "again", tn_relu);
    tn_sequential_add(&twice, &n);
    tn_sequential_add(&twice, &again);
    expect_equal_gradients(&twice, x, (tn_module *[]){&twice.base}, 1);
    tn_module_finish(&twice);

    tn_block block;
    tn_block_options options = TN_WITH(tn_block, .heads = 2, .dropout = 0.3);
    tn_block_init(&block, 8, options);
    x = random_leaf(TN_DIMS(2, 6, 8));
    expect_equal_gradients(&block, x, (tn_module *[]){&block.base}, 1);
    expect_equal_gradients(&block, x, (tn_module *[]){&block.attn.base, &block.mlp.base}, 2);
    tn_module_finish(&block);
}

/* The module's own hooks run once; those of modules inside it run again, and can tell that they
 * do. */
TRACED(hooks_in_recompute) {
    net n;
    net_init(&n);
    tn_module_set_recompute(&n, true);
    tag outer = {.name = "n"}, first = {.name = "1"};
    hook_all(&n, &outer);
    hook_all(&n.fc1, &first);
    tn_tensor *x = random_leaf(TN_DIMS(2, 5)), *loss = tn_sum_all(tn_call(&n, x));
    expect_trace("n.before forward 1.before 1.after n.after ");
    tn_backward(loss);
    expect_trace("n.backward forward' 1.before' 1.after' 1.backward 1.done1+ n.done1+ ");
    tn_module_finish(&n);
}

/* Intermediate results take no memory between forward and backward. */
TRACED(recompute_keeps_only_inputs) {
    net n;
    net_init(&n);
    tn_tensor *x = random_leaf(TN_DIMS(2, 5));
    int64_t had = tn_live_tensors();
    tn_tensor *plain = tn_call(&n, x);
    int64_t kept = tn_live_tensors() - had;
    tn_drop(plain);
    assert_int_equal(tn_live_tensors(), had);
    tn_module_set_recompute(&n, true);
    tn_call(&n, x);
    assert_int_equal(tn_live_tensors() - had, 1); /* the result */
    assert_true(kept > 1);
    tn_module_finish(&n);
}

/* ---- Forwards that call themselves ----------------------------------------------------------- */

/* A module whose forward calls itself, or another module, `left` more times. */
typedef struct recurrent {
    tn_module base;
    void *next; /* the module it calls */
    int times;  /* how often */
    int left;   /* -1: endlessly */
    int calls;
} recurrent;

static tn_tensor *recurrent_forward(tn_module *self, tn_tensor *x) {
    recurrent *r = (recurrent *)self;
    r->calls++;
    if (r->left == 0) { return tn_mul(x, x); }
    r->left -= r->left > 0;
    for (int i = 0; i < r->times; i++) {
        x = tn_call(r->next, x);
    }
    return x;
}

static void recurrent_init(recurrent *r, void *next, int times, int left) {
    *r = (recurrent){.next = next, .times = times, .left = left};
    tn_module_init(r, "loop", recurrent_forward);
}

TRACED(recursion_has_an_end) {
    recurrent r, other;
    tn_tensor *x = tn_set_requires_grad(tn_full(TN_DIMS(), 3.0, TN_F32), true);
    recurrent_init(&r, &r, 1, -1);
    assert_inert(tn_call(&r, x), TN_ESTATE, "loop: 1000 forwards are running inside each other");
    assert_int_equal(r.calls, 1000);
    recurrent_init(&r, &r, 3, -1); /* 3^1000 calls would take a while */
    assert_inert(tn_call(&r, x), TN_ESTATE, "inside each other");
    assert_int_equal(r.calls, 1000);
    recurrent_init(&r, &other, 1, -1);
    recurrent_init(&other, &r, 1, -1);
    assert_inert(tn_call(&r, x), TN_ESTATE, "inside each other");
    tn_module_set_recompute(&r, true);
    assert_inert(tn_call(&r, x), TN_ESTATE, "inside each other");
    tn_module_finish(&r);

    recurrent_init(&r, &r, 1, 900); /* deep, but it ends; the refused calls left nothing behind */
    tn_tensor *y = tn_call(&r, x);
    assert_int_equal(r.calls, 901);
    tn_backward(y);
    assert_true(tn_item(tn_grad_of(x)) == 6.0);
    tn_module_finish(&r);
    tn_module_finish(&other);
}

static tn_tensor *fails_again(tn_tensor *x) {
    return tn_in_recompute() ? tn_reshape(x, TN_DIMS(7)) : x;
}

/* Backward names what is around the module that it calls again, up to a depth. */
TRACED(recompute_in_a_deep_tree) {
    void *m = TN_FN(fails_again);
    tn_module_set_recompute(m, true);
    for (int depth = 0; depth < 40; depth++) {
        m = TN_SEQUENTIAL(m);
    }
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F32), true);
    tn_backward(tn_sum_all(tn_call(m, x)));
    assert_error(TN_ESHAPE, "(in 0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0)");
    tn_module_free(m);
}

static tn_values calls_its_module(tn_module *m, tn_values in, void *user) {
    in.v[0] = tn_call(m, in.v[0]);
    return in;
}

TRACED(hooks_that_call_their_module) {
    recurrent r;
    recurrent_init(&r, &r, 1, 0);
    tn_module_hook(&r, (tn_module_hooks){.before = calls_its_module});
    assert_inert(tn_call(&r, tn_ones(TN_DIMS(2), TN_F32)), TN_ESTATE, "inside each other");
    tn_module_finish(&r);
}
