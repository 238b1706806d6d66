/* The hooks that sharding is built on: a toy version gives the same bits as the plain model, and
 * gathers as often as it should. */

#include "tests/support/test.h"

#include "toy_sharding.h"

enum { VOCAB = 17, WIDTH = 24 };

typedef struct half {
    tn_module base;
    tn_linear fc1, fc2;
} half;

/* A unit whose second half is recomputed separately. */
typedef struct unit {
    tn_module base;
    tn_layer_norm ln;
    half inner;
} unit;

/* wte is read by the root, as embedding and as classifier. `a` is called twice; `wrapper` is
 * recomputed and holds unit `b`. */
typedef struct net {
    tn_module base;
    tn_embedding wte;
    tn_linear head;
    unit a, b, c;
    tn_sequential wrapper;
} net;

static tn_tensor *half_forward(tn_module *self, tn_tensor *x) {
    half *m = (half *)self;
    return tn_call(&m->fc2, tn_gelu(tn_call(&m->fc1, x)));
}

static tn_tensor *unit_forward(tn_module *self, tn_tensor *x) {
    unit *m = (unit *)self;
    return tn_add(x, tn_dropout_op(tn_call(&m->inner, tn_call(&m->ln, x)), 0.1));
}

static void unit_init(unit *m, bool recompute_inside) {
    tn_module_init(m, "unit", unit_forward);
    tn_module_init(&m->inner, "half", half_forward);
    tn_layer_norm_init(&m->ln, WIDTH, tn_norm_defaults());
    tn_linear_init(&m->inner.fc1, WIDTH, 2 * WIDTH, tn_linear_defaults());
    tn_linear_init(&m->inner.fc2, 2 * WIDTH, WIDTH, tn_linear_defaults());
    tn_module_add(&m->inner, "fc1", &m->inner.fc1);
    tn_module_add(&m->inner, "fc2", &m->inner.fc2);
    tn_module_add(m, "ln", &m->ln);
    tn_module_add(m, "inner", &m->inner);
    tn_module_set_recompute(&m->inner, recompute_inside);
}

static tn_tensor *net_forward(tn_module *self, tn_tensor *tokens) {
    net *m = (net *)self;
    tn_tensor *x = tn_call(&m->wte, tokens);
    x = tn_call(&m->a, x);
    x = tn_call(&m->wrapper, x);
    x = tn_call(&m->a, x);
    return tn_call(&m->head, tn_call(&m->c, x));
}

static void net_init(net *m) {
    tn_module_init(m, "net", net_forward);
    tn_embedding_init(&m->wte, VOCAB, WIDTH, tn_embedding_defaults());
    tn_linear_options o = tn_linear_defaults();
    o.bias = false;
    tn_linear_init(&m->head, WIDTH, VOCAB, o);
    unit_init(&m->a, false);
    unit_init(&m->b, false);
    unit_init(&m->c, true);
    tn_sequential_init(&m->wrapper);
    tn_module_add(m, "wte", &m->wte);
    tn_module_add(m, "a", &m->a);
    tn_sequential_add(&m->wrapper, &m->b);
    tn_module_add(m, "wrapper", &m->wrapper);
    tn_module_add(m, "c", &m->c);
    tn_module_add(m, "head", &m->head);
    tn_module_tie(m, "head.weight", "wte.weight");
    tn_module_set_recompute(&m->wrapper, true);
}

static void train_step(net *m, tn_optim *opt, toy_shard *toy, int step) {
    TN_SCOPE;
    tn_default_generator()->stream = (uint64_t)step;
    tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(3, 5), TN_I64);
    tn_tensor *labels = tn_randint(0, VOCAB, TN_DIMS(3, 5), TN_I64);
    tn_backward(tn_cross_entropy(tn_call(m, tokens), labels, TN_MEAN));
    if (toy) {
        for (int i = 0; i < toy->count; i++) {
            assert_false(toy_gathered(&toy->unit[i])); /* nothing is gathered between steps */
        }
        toy_gather_all(toy);
    }
    tn_optim_step(opt);
    if (toy) {
        toy_store_all(toy);
    }
    assert_int_equal(tn_error(), TN_OK);
}

/* The results of a run: parameters and gradients by name, each kept. */
typedef struct result {
    tn_tensor *tensor[64];
    int count;
} result;

static bool keep_entry(const tn_entry *entry, void *user) {
    result *r = user;
    r->tensor[r->count++] = tn_keep(tn_copy(tn_detach(*entry->field)));
    r->tensor[r->count++] = tn_keep(tn_copy(tn_grad_of(*entry->field)));
    return true;
}

static void train_net(bool sharded, result *r, int *gathers) {
    TN_SCOPE;
    tn_seed(3);
    net m;
    net_init(&m);
    tn_sgd_options o = tn_sgd_defaults();
    o.lr = 0.1;
    tn_optim *opt = tn_sgd(&m, o);
    toy_shard toy = {0};
    if (sharded) {
        toy_unit_add(&toy, &m.a.base);
        toy_unit_add(&toy, &m.b.base);
        toy_unit_add(&toy, &m.c.base);
        toy_unit_add(&toy, &m.base);
    }
    for (int step = 0; step < 3; step++) {
        tn_optim_zero_grad(opt);
        train_step(&m, opt, sharded ? &toy : NULL, step);
    }
    for (int i = 0; i < toy.count; i++) {
        gathers[i] = toy.unit[i].gathers;
    }
    toy_gather_all(&toy);
    tn_module_each(&m, (tn_walk){0}, keep_entry, r);
    tn_optim_free(opt);
    tn_module_finish(&m);
    toy_free(&toy);
}

PLAIN_TEST(same_bits_and_few_gathers) {
    int64_t before = tn_live_tensors();
    int gathers[TOY_UNITS] = {0};
    result plain = {0}, sharded = {0};
    train_net(false, &plain, NULL);
    train_net(true, &sharded, gathers);
    assert_int_equal(tn_error(), TN_OK);
    /* the tied weight once, six parameters per unit */
    assert_int_equal(plain.count, 2 * (1 + 3 * 6));
    assert_int_equal(sharded.count, plain.count);
    for (int i = 0; i < plain.count; i++) {
        assert_true(tn_equal(plain.tensor[i], sharded.tensor[i]));
        tn_release(plain.tensor[i]);
        tn_release(sharded.tensor[i]);
    }
    /* In a step: forward and backward of each call, and the optimiser. b gathers once for recompute
     * and backward. */
    assert_int_equal(gathers[0], 3 * (2 + 2 + 1)); /* a */
    assert_int_equal(gathers[1], 3 * (1 + 1 + 1)); /* b */
    assert_int_equal(gathers[2], 3 * (1 + 1 + 1)); /* c */
    assert_int_equal(gathers[3], 3 * (1 + 1 + 1)); /* root */
    assert_int_equal(tn_live_tensors(), before);
}

/* A unit that forgets to gather is an error, not a wrong number. */
PLAIN_TEST(empty_storage_is_an_error) {
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(4), TN_F32);
    assert_int_equal(tn_storage_empty(x), TN_OK);
    assert_true(tn_is_inert(tn_exp(x)));
    assert_int_equal(tn_error(), TN_ESTATE);
    tn_error_clear();
    assert_int_equal(tn_storage_refill(x), TN_OK);
    tn_fill_(x, 2.0);
    assert_float_equal(tn_item(tn_sum_all(x)), 8.0, 0.0);
}
