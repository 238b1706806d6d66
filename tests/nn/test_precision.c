/* Mixed precision: what a forward sees, what the copies cost, where gradients arrive, and that nothing around a call
 * (hooks, recompute, errors, a finished module) is left with a copy in a parameter's field. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tern/sys/tensor.h>
#include <tern/tern.h>

static int64_t live;

static int begin(void **state) {
    (void)state;
    static const bool record = true;
    tn_error_clear(); /* a test that failed may have left either */
    tn_grad_mode_end(&record);
    live = tn_live_tensors();
    tn_seed(1);
    return 0;
}

static int end(void **state) {
    (void)state;
    assert_string_equal(tn_error_message(), "");
    assert_int_equal(tn_live_tensors(), live);
    return 0;
}

static void expect_error(tn_status status, const char *part) {
    assert_int_equal(tn_error(), status);
    if (!strstr(tn_error_message(), part)) {
        fail_msg("\"%s\" does not contain \"%s\"", tn_error_message(), part);
    }
    tn_error_clear();
}

/* ---- A net that looks at itself while it runs -------------------------------------------------- */

enum { IN = 24, HIDDEN = 40, OUT = 8, ROWS = 16 };

typedef struct net {
    tn_module base;
    tn_linear fc1, fc2;
    tn_layer_norm norm;
    tn_tensor *scale; /* (HIDDEN) */
    tn_dtype x, weight, norm_weight, scaled, hidden;
    bool fails;
    void *moved; /* a module that the forward moves, or NULL */
    int calls;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    n->calls++;
    n->x = tn_dtype_of(x);
    n->weight = tn_dtype_of(n->fc1.weight);
    n->norm_weight = tn_dtype_of(n->norm.weight);
    n->scaled = tn_dtype_of(n->scale);
    if (n->moved) {
        tn_module_to(n->moved, tn_cpu());
    }
    tn_tensor *h = tn_call(&n->norm, tn_call(&n->fc1, x));
    n->hidden = tn_dtype_of(h);
    if (n->fails) {
        tn_raise(TN_EVALUE, "this forward fails");
        return tn_inert();
    }
    h = tn_mul(tn_cast(h, n->scaled), n->scale);
    return tn_call(&n->fc2, tn_gelu(h));
}

static void net_init(net *n) {
    memset(n, 0, sizeof(*n));
    tn_module_init(&n->base, "net", net_forward);
    tn_linear_init(&n->fc1, IN, HIDDEN, tn_linear_defaults());
    tn_linear_init(&n->fc2, HIDDEN, OUT, tn_linear_defaults());
    tn_layer_norm_init(&n->norm, HIDDEN, tn_norm_defaults());
    tn_module_add(&n->base, "fc1", &n->fc1);
    tn_module_add(&n->base, "norm", &n->norm);
    tn_module_add(&n->base, "fc2", &n->fc2);
    TN_SCOPE;
    tn_module_param(&n->base, "scale", &n->scale, tn_full(TN_DIMS(HIDDEN), 1.25, TN_F32));
}

static void set_compute(void *m, tn_dtype compute) {
    tn_precision policy = tn_precision_defaults();
    policy.compute = compute;
    assert_int_equal(tn_module_set_precision(m, policy), TN_OK);
}

static bool field_is_f32(const tn_entry *entry, void *user) {
    (void)user;
    assert_int_equal(tn_dtype_of(*entry->field), TN_F32);
    assert_true(tn_is_leaf(*entry->field));
    return true;
}

/* Between calls every field holds its f32 parameter. */
static void expect_parameters(void *m) {
    tn_module_each(m, (tn_walk){.with_shared = true}, field_is_f32, NULL);
}

static tn_tensor *batch(int64_t number) {
    tn_generator g = {.seed = 7, .stream = (uint64_t)number};
    return tn_normal_(tn_empty(TN_DIMS(ROWS, IN), TN_F32), 0, 1, &g);
}

static tn_tensor *target(int64_t number) {
    tn_generator g = {.seed = 8, .stream = (uint64_t)number};
    return tn_normal_(tn_empty(TN_DIMS(ROWS, OUT), TN_F32), 0, 1, &g);
}

static void net_backward(net *n, int64_t number) {
    TN_SCOPE;
    tn_tensor *y = tn_call(n, batch(number));
    tn_backward(tn_mse(tn_cast(y, TN_F32), target(number), TN_MEAN));
}

/* ---- What the forward sees ---------------------------------------------------------------------- */

static void defaults(void **state) {
    (void)state;
    tn_precision p = tn_precision_defaults();
    assert_int_equal(p.param, TN_F32);
    assert_int_equal(p.compute, TN_BF16);
    assert_int_equal(p.reduce, TN_F32);
    assert_false(p.cast_output);
}

static void dtypes_inside(void **state) {
    (void)state;
    static const tn_dtype kinds[] = {TN_BF16, TN_F16};
    for (int i = 0; i < 2; i++) {
        net n;
        net_init(&n);
        set_compute(&n, kinds[i]);
        assert_int_equal(tn_module_compute_dtype(&n.fc1, TN_F64), kinds[i]);
        TN_SCOPE;
        tn_tensor *y = tn_call(&n, batch(0));
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
static void inner_policy_wins(void **state) {
    (void)state;
    net n;
    net_init(&n);
    tn_precision policy = tn_precision_defaults();
    policy.cast_output = true;
    tn_module_set_precision(&n, policy);
    set_compute(&n.norm, TN_F32);
    TN_SCOPE;
    tn_tensor *y = tn_call(&n, batch(0));
    assert_int_equal(tn_dtype_of(y), TN_F32);
    assert_int_equal(n.weight, TN_BF16);
    assert_int_equal(n.norm_weight, TN_F32);
    assert_int_equal(n.hidden, TN_F32);
    assert_int_equal(tn_dtype_of(tn_call(&n.fc1, batch(0))), TN_BF16);
    assert_int_equal(tn_dtype_of(tn_call(&n.norm, tn_ones(TN_DIMS(HIDDEN), TN_BF16))), TN_F32);
    expect_parameters(&n);
    tn_backward(tn_sum_all(y));
    assert_non_null(tn_grad_of(n.norm.weight));
    assert_non_null(tn_grad_of(n.fc1.weight));
    tn_module_finish(&n);
}

static void parameters_are_converted(void **state) {
    (void)state;
    net n;
    net_init(&n);
    tn_linear tied;
    tn_linear_init(&tied, IN, HIDDEN, tn_linear_defaults());
    tn_module_add(&n.base, "tied", &tied);
    tn_module_tie(&n.base, "tied.weight", "fc1.weight");
    tn_precision policy = {.param = TN_BF16, .compute = TN_BF16, .reduce = TN_F32, .output = TN_F32};
    assert_int_equal(tn_module_set_precision(&n, policy), TN_OK);
    assert_int_equal(tn_dtype_of(n.fc1.weight), TN_BF16);
    assert_ptr_equal(n.fc1.weight, tied.weight);
    assert_true(tn_requires_grad(n.fc1.weight));
    net_backward(&n, 0);
    assert_int_equal(tn_dtype_of(tn_grad_of(n.fc1.weight)), TN_F32);
    tn_module_finish(&n);
}

/* ---- What the copies cost ----------------------------------------------------------------------- */

static int64_t copies_of(void *m) {
    return tn_module_count(m) * 2;
}

/* Where the module lies. */
static tn_memory_stats memory(void) {
    return tn_device_memory(tn_default_device());
}

static int64_t allocations_of_call(net *n, tn_tensor *x) {
    int64_t before = memory().allocations;
    tn_drop(tn_call(n, x));
    return memory().allocations - before;
}

/* One copy for each change of the parameters: calls in between allocate what a bf16 model's would. */
static void copies_are_kept(void **state) {
    (void)state;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_NO_GRAD;
    TN_SCOPE;
    tn_tensor *x = tn_cast(batch(0), TN_BF16);
    int64_t before = memory().allocated;
    tn_drop(tn_call(&n, x));
    int64_t held = memory().allocated - before;
    assert_true(held >= copies_of(&n) && held <= copies_of(&n) + 7 * 256); /* 7 parameters, rounded */
    int64_t again = allocations_of_call(&n, x);
    assert_int_equal(allocations_of_call(&n, x), again);
    assert_int_equal(memory().allocated - before, held);
    net plain; /* bf16 parameters and nothing to lend */
    net_init(&plain);
    tn_module_set_precision(&plain, (tn_precision){.param = TN_BF16, .compute = TN_BF16});
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
    (void)user;
    TN_SCOPE;
    tn_mul_scalar_(*entry->field, 0.5);
    return true;
}

/* A recorded call holds the kept copies: two calls, two graphs, still one copy of every parameter. */
static void tapes_share_the_copies(void **state) {
    (void)state;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_SCOPE;
    tn_tensor *x = tn_cast(batch(0), TN_BF16);
    int64_t before = memory().allocated;
    tn_tensor *first = tn_call(&n, x);
    int64_t one = memory().allocated - before - copies_of(&n);
    tn_tensor *second = tn_call(&n, x);
    int64_t two = memory().allocated - before - copies_of(&n);
    assert_true(two <= 2 * one);
    {
        TN_NO_GRAD;
        tn_module_each(&n, (tn_walk){0}, step_changes, NULL);
        tn_drop(tn_call(&n, x));
    }
    tn_drop(second);
    tn_backward(tn_sum_all(first)); /* the weights that it read are gone */
    expect_error(TN_ESTATE, "was changed in place");
    tn_module_zero_grad(&n);
    tn_module_finish(&n);
}

/* ---- Gradients ------------------------------------------------------------------------------------ */

static bool grad_is_f32(const tn_entry *entry, void *user) {
    (void)user;
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
        if (!(off <= most)) {
            fail_msg("gradient %d is off by %g", i, off);
        }
    }
}

/* The same bits in two f32 tensors, wherever they lie. */
static void expect_same_bits(tn_tensor *a, tn_tensor *b) {
    TN_SCOPE;
    TN_NO_GRAD;
    assert_int_equal(tn_count(a), tn_count(b));
    assert_memory_equal(tn_data(tn_to(a, tn_cpu())), tn_data(tn_to(b, tn_cpu())),
                        (size_t)tn_count(a) * 4);
}

static void expect_same(const gradients *a, const gradients *b) {
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        expect_same_bits(a->at[i], b->at[i]);
    }
}

static void close_to_f32(void **state) {
    (void)state;
    TN_SCOPE;
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
    expect_close(&got[1], &got[0], 0.02); /* bf16 has 8 bits: 0.4 % a rounding */
    expect_close(&got[2], &got[0], 0.0025);
}

/* Eight micro-batches: the sum is that of the single gradients in f32, to the last bit. */
static void accumulation_is_f32(void **state) {
    (void)state;
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
    (void)context;
    twice *m = (twice *)self;
    return tn_values_of(tn_call(&m->a, in.v[0]), tn_call(&m->b, in.v[1]));
}

static void twice_init(twice *m) {
    tn_linear_options options = tn_linear_defaults();
    options.bias = false;
    tn_module_init_values(&m->base, "twice", twice_forward);
    tn_linear_init(&m->a, IN, OUT, options);
    tn_linear_init(&m->b, IN, OUT, options);
    tn_module_add(&m->base, "a", &m->a);
    tn_module_add(&m->base, "b", &m->b);
    tn_module_tie(&m->base, "b.weight", "a.weight");
    set_compute(m, TN_BF16);
}

static void tied_parameters(void **state) {
    (void)state;
    twice m = {0};
    twice_init(&m);
    TN_SCOPE;
    tn_tensor *x = tn_full(TN_DIMS(1, IN), 1.0, TN_F32),
              *u = tn_full(TN_DIMS(1, IN), 1.0 / 256, TN_F32);
    int64_t before = memory().allocated;
    {
        TN_NO_GRAD;
        TN_SCOPE;
        tn_call_values(&m, tn_values_of(x, u), NULL);
    }
    assert_true(memory().allocated - before <= IN * OUT * 2 + 256); /* one copy */
    tn_values out = tn_call_values(&m, tn_values_of(x, u), NULL);
    tn_tensor *dy[2] = {tn_ones(TN_DIMS(1, OUT), TN_BF16), tn_ones(TN_DIMS(1, OUT), TN_BF16)};
    assert_int_equal(tn_backward_from(out.v, dy, 2, false), TN_OK);
    int64_t first[2] = {0, 0};
    /* 1 + 1/256 is a tie in bf16 and would be 1 */
    assert_true(tn_at(tn_grad_of(m.a.weight), first) == 1.0 + 1.0 / 256);
    assert_ptr_equal(m.a.weight, m.b.weight);
    expect_parameters(&m);
    tn_module_finish(&m);
}

/* A parameter that is in two modules with different policies. */
static void two_policies_one_parameter(void **state) {
    (void)state;
    twice m = {0};
    twice_init(&m);
    set_compute(&m.b, TN_F32);
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(1, IN), TN_F32);
    tn_values out = tn_call_values(&m, tn_values_of(x, x), NULL);
    assert_int_equal(tn_dtype_of(out.v[0]), TN_BF16);
    assert_int_equal(tn_dtype_of(out.v[1]), TN_F32);
    tn_backward(tn_add(tn_sum_all(tn_cast(out.v[0], TN_F32)), tn_sum_all(out.v[1])));
    int64_t first[2] = {0, 0};
    assert_true(tn_at(tn_grad_of(m.a.weight), first) == 2.0);
    expect_parameters(&m);
    tn_module_finish(&m);
}

static void frozen_parameters(void **state) {
    (void)state;
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
static void second_derivative(void **state) {
    (void)state;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_SCOPE;
    tn_tensor *x = tn_set_requires_grad(batch(0), true), *dx;
    tn_tensor *y = tn_sum_all(tn_cast(tn_call(&n, x), TN_F32));
    tn_grad_options options = tn_grad_defaults();
    options.create_graph = true;
    assert_int_equal(tn_grad(&y, NULL, 1, &x, 1, &dx, options), TN_OK);
    tn_backward(tn_sum_all(tn_square(dx)));
    assert_int_equal(tn_dtype_of(tn_grad_of(n.fc1.weight)), TN_F32);
    assert_true(norm_of(tn_grad_of(n.fc1.weight)) > 0);
    tn_module_finish(&n);
}

/* ---- Recompute and hooks ---------------------------------------------------------------------------- */

static void recompute_is_bit_equal(void **state) {
    (void)state;
    TN_SCOPE;
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

/* Tied weights inside recompute: each is one parameter of the node, not two. */
static void recompute_of_tied_weights(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_full(TN_DIMS(1, IN), 1.0, TN_F32), *u = tn_full(TN_DIMS(1, IN), 0.5, TN_F32);
    tn_tensor *dy[2] = {tn_ones(TN_DIMS(1, OUT), TN_BF16), tn_ones(TN_DIMS(1, OUT), TN_BF16)};
    twice m = {0};
    twice_init(&m);
    tn_module_set_recompute(&m, true);
    tn_values out = tn_call_values(&m, tn_values_of(x, u), NULL);
    assert_int_equal(tn_backward_from(out.v, dy, 2, false), TN_OK);
    int64_t first[2] = {0, 0};
    assert_true(tn_at(tn_grad_of(m.a.weight), first) == 1.5);
    tn_module_finish(&m);
}

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
    (void)in;
    seen *s = user;
    s->after = tn_dtype_of(((net *)m)->fc1.weight);
    s->out = tn_dtype_of(out.v[0]);
    return out;
}

/* Hooks are outside: they see what the caller gave, and the parameters. */
static void hooks_are_outside(void **state) {
    (void)state;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    seen s;
    tn_module_hook(&n, (tn_module_hooks){.before = look_before, .after = look_after, .user = &s});
    TN_SCOPE;
    tn_call(&n, batch(0));
    assert_int_equal(s.in, TN_F32);
    assert_int_equal(s.before, TN_F32);
    assert_int_equal(s.after, TN_F32);
    assert_int_equal(s.out, TN_BF16);
    tn_module_finish(&n);
}

/* ---- When something goes wrong ------------------------------------------------------------------------ */

static void errors_restore_the_fields(void **state) {
    (void)state;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    TN_SCOPE;
    n.fails = true;
    assert_true(tn_is_inert(tn_call(&n, batch(0))));
    expect_error(TN_EVALUE, "this forward fails");
    expect_parameters(&n);
    n.fails = false;
    tn_module_set_recompute(&n, true);
    tn_tensor *y = tn_call(&n, batch(0));
    n.fails = true; /* the second time */
    tn_backward(tn_sum_all(y));
    expect_error(TN_EVALUE, "this forward fails");
    expect_parameters(&n);
    n.fails = false;
    tn_call(&n, tn_ones(TN_DIMS(2, IN + 1), TN_F32));
    expect_error(TN_ESHAPE, "linear");
    expect_parameters(&n);
    tn_call(&n, batch(0));
    tn_module_zero_grad(&n);
    tn_module_finish(&n);
}

/* Running out of memory at every single allocation of a call. */
static void no_memory(void **state) {
    (void)state;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    bool done = false;
    for (int64_t room = 0; !done && room < 1 << 20; room += 1024) {
        TN_SCOPE;
        tn_tensor *x = batch(0);
        tn_memory_trim();
        tn_memory_set_limit(tn_memory().allocated + room);
        done = !tn_is_inert(tn_call(&n, x));
        tn_memory_set_limit(0);
        if (!done) {
            expect_error(TN_ENOMEM, "");
        }
        expect_parameters(&n);
    }
    assert_true(done);
    tn_module_finish(&n);
}

static void *to_finish;

static tn_tensor *finishing_forward(tn_module *self, tn_tensor *x) {
    (void)self;
    tn_module_finish(to_finish);
    return tn_relu(x);
}

/* A module that is finished in the middle of a call takes its copies with it. */
static void finished_in_its_call(void **state) {
    (void)state;
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
    tn_call(&s, batch(0));
    tn_error_clear(); /* whatever the sequential thinks of it */
    tn_module_finish(&s);
}

/* Nobody moves a module whose fields hold copies: neither the one that is called nor one inside. */
static void not_moved_in_its_call(void **state) {
    (void)state;
    net n;
    net_init(&n);
    set_compute(&n, TN_BF16);
    void *const moved[] = {&n, &n.fc2};
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        n.moved = moved[i];
        tn_call(&n, batch(0));
        expect_error(TN_ESTATE, "is being called");
        expect_parameters(&n);
    }
    assert_int_equal(tn_module_to(&n, tn_default_device()), TN_OK);
    tn_module_finish(&n);
}

static void bad_policies(void **state) {
    (void)state;
    net n;
    net_init(&n);
    tn_precision p = tn_precision_defaults();
    p.compute = TN_I64;
    assert_int_equal(tn_module_set_precision(&n, p), TN_EDTYPE);
    expect_error(TN_EDTYPE, "compute is i64");
    p = tn_precision_defaults();
    p.reduce = (tn_dtype)99;
    tn_module_set_precision(&n, p);
    expect_error(TN_EDTYPE, "reduce");
    assert_int_equal(tn_module_compute_dtype(&n, TN_F64), TN_F64);
    tn_module_set_precision(NULL, tn_precision_defaults());
    expect_error(TN_EVALUE, "NULL");
    tn_module_finish(&n);
}

/* ---- Training --------------------------------------------------------------------------------------------- */

enum { VOCAB = 16, CONTEXT = 16, BATCH = 8 };

static void gpt_init(tn_gpt *gpt, tn_dtype compute, bool recompute) {
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = VOCAB;
    o.context = CONTEXT;
    o.layers = 2;
    o.heads = 2;
    o.width = 32;
    tn_seed(3);
    tn_gpt_init(gpt, o);
    set_compute(gpt, compute);
    tn_module_set_recompute(&gpt->h[1], recompute);
}

/* A text that a context predicts: each letter is the one before it, times 5 plus 3, now and then not. */
static double gpt_step(tn_gpt *gpt, tn_optim *opt, int64_t number) {
    TN_SCOPE;
    int64_t x[BATCH * CONTEXT], y[BATCH * CONTEXT];
    tn_generator g = {.seed = 21, .stream = (uint64_t)number};
    for (int b = 0; b < BATCH; b++) {
        int64_t letter = tn_random_below(&g, VOCAB);
        for (int t = 0; t < CONTEXT; t++) {
            x[b * CONTEXT + t] = letter;
            letter = tn_random_below(&g, 10) ? (letter * 5 + 3) % VOCAB : tn_random_below(&g, VOCAB);
            y[b * CONTEXT + t] = letter;
        }
    }
    tn_tensor *loss = tn_gpt_loss(gpt, TN_FROM(x, TN_DIMS(BATCH, CONTEXT), TN_I64),
                                  TN_FROM(y, TN_DIMS(BATCH, CONTEXT), TN_I64));
    assert_int_equal(tn_dtype_of(loss), TN_F32);
    tn_backward(loss);
    tn_optim_clip(opt, 1.0);
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    return tn_item(loss);
}

static tn_optim *adamw(void *m) {
    tn_adamw_options a = tn_adamw_defaults();
    a.lr = 5e-3;
    return tn_adamw(m, a);
}

/* The mean loss of the last 20 of 200 steps. */
static double train(tn_dtype compute) {
    tn_gpt gpt;
    gpt_init(&gpt, compute, false);
    tn_optim *opt = adamw(&gpt);
    double sum = 0;
    for (int i = 0; i < 200; i++) {
        double loss = gpt_step(&gpt, opt, i);
        sum += i >= 180 ? loss : 0;
    }
    tn_optim_free(opt);
    tn_module_finish(&gpt);
    return sum / 20;
}

/* Hundreds of steps take a minute on the emulator, and say nothing that a few do not. */
static void not_on_the_emulator(void) {
    const char *plugin = getenv("TERN_CUDA");
    if (tn_default_device().kind != TN_CPU && plugin && strcmp(plugin, "cuda_emulator") == 0) {
        skip();
    }
}

/* bf16 reaches f32's loss: within 2 %. */
static void training_reaches_f32(void **state) {
    (void)state;
    not_on_the_emulator();
    double f32 = train(TN_F32), bf16 = train(TN_BF16);
    assert_true(f32 < 1.0); /* it has learned: chance is log 16 = 2.77 */
    if (fabs(bf16 - f32) > 0.02 * f32) {
        fail_msg("f32 %.4f, bf16 %.4f", f32, bf16);
    }
}

static bool same_parameter(const tn_entry *entry, void *user) {
    expect_same_bits(*entry->field, tn_module_get(user, entry->path));
    return true;
}

/* Recompute changes no bit of a training run: also the embedding's, which is read in two places. */
static void training_with_recompute(void **state) {
    (void)state;
    tn_gpt gpt[2];
    for (int i = 0; i < 2; i++) {
        gpt_init(&gpt[i], TN_BF16, i == 1);
        tn_optim *opt = adamw(&gpt[i]);
        for (int k = 0; k < 3; k++) {
            gpt_step(&gpt[i], opt, k);
        }
        tn_optim_free(opt);
    }
    tn_module_each(&gpt[0], (tn_walk){0}, same_parameter, &gpt[1]);
    tn_module_finish(&gpt[0]);
    tn_module_finish(&gpt[1]);
}

/* A checkpoint holds the f32 parameters: a run that goes on from it is the run that was never stopped. */
static void resume_is_bit_exact(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof(path), "/tmp/tern_precision_%d.safetensors", (int)getpid());
    tn_gpt whole, part;
    gpt_init(&whole, TN_BF16, false);
    gpt_init(&part, TN_BF16, false);
    tn_optim *opt = adamw(&whole), *again = adamw(&part);
    for (int i = 0; i < 4; i++) {
        gpt_step(&whole, opt, i);
    }
    tn_checkpoint c = {.model = &whole, .optim = opt, .step = 4};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    gpt_step(&part, again, 99); /* its copies show other weights than those that are loaded */
    tn_checkpoint loaded = {.model = &part, .optim = again};
    assert_int_equal(tn_checkpoint_load(&loaded, path), TN_OK);
    for (int i = 4; i < 6; i++) {
        assert_true(gpt_step(&whole, opt, i) == gpt_step(&part, again, i));
    }
    tn_module_each(&whole, (tn_walk){0}, same_parameter, &part);
    unlink(path);
    tn_optim_free(opt);
    tn_optim_free(again);
    tn_module_finish(&whole);
    tn_module_finish(&part);
}

/* With caches of the compute dtype: the same letters as without. */
static void generation(void **state) {
    (void)state;
    not_on_the_emulator();
    tn_gpt gpt;
    gpt_init(&gpt, TN_BF16, false);
    tn_optim *opt = adamw(&gpt);
    for (int i = 0; i < 100; i++) {
        gpt_step(&gpt, opt, i);
    }
    tn_module_train(&gpt, false);
    int64_t first = 1, text[10];
    assert_int_equal(tn_gpt_generate(&gpt, &first, 1, 10, 0.0, 0, NULL, text), TN_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(text[i], (first * 5 + 3) % VOCAB);
        first = text[i];
    }
    expect_parameters(&gpt);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(defaults),
        TEST(dtypes_inside),
        TEST(inner_policy_wins),
        TEST(parameters_are_converted),
        TEST(copies_are_kept),
        TEST(tapes_share_the_copies),
        TEST(close_to_f32),
        TEST(accumulation_is_f32),
        TEST(tied_parameters),
        TEST(two_policies_one_parameter),
        TEST(frozen_parameters),
        TEST(second_derivative),
        TEST(recompute_is_bit_equal),
        TEST(recompute_of_tied_weights),
        TEST(hooks_are_outside),
        TEST(errors_restore_the_fields),
        TEST(no_memory),
        TEST(finished_in_its_call),
        TEST(not_moved_in_its_call),
        TEST(bad_policies),
        TEST(training_reaches_f32),
        TEST(training_with_recompute),
        TEST(resume_is_bit_exact),
        TEST(generation),
    };
    return cmocka_run_group_tests_name("precision", tests, NULL, NULL);
}
