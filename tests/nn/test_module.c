/* Modules: registering, names, ties, walks, flags, finishing, and what is refused. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

typedef struct net {
    tn_module base;
    tn_linear fc1, fc2;
    tn_tensor *scale, *mean, *cache;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    return tn_mul(tn_call(&n->fc2, tn_relu(tn_call(&n->fc1, x))), n->scale);
}

static void net_init(net *n) {
    TN_SCOPE;
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->fc1, 3, 4, tn_linear_defaults());
    tn_linear_options no_bias = TN_WITH(tn_linear, .bias = false);
    tn_linear_init(&n->fc2, 4, 3, no_bias);
    tn_module_add(n, "fc1", &n->fc1);
    tn_module_add(n, "layers.2", &n->fc2);
    tn_module_param(n, "scale", &n->scale, tn_ones(TN_DIMS(), TN_F32));
    tn_module_buffer(n, "mean", &n->mean, tn_zeros(TN_DIMS(3), TN_F32));
    tn_module_scratch(n, "cache", &n->cache, NULL);
}

/* ---- Helpers --------------------------------------------------------------------------------- */

typedef struct paths {
    char text[1024];
    int stop_after;
} paths;

static bool list_entry(const tn_entry *entry, void *user) {
    paths *p = user;
    size_t used = strlen(p->text);
    snprintf(p->text + used, sizeof(p->text) - used, "%s%s%s ", entry->path,
             entry->buffer ? "!" : "", entry->shared ? "+" : "");
    return --p->stop_after != 0;
}

static bool list_module(tn_module *m, const char *path, void *user) {
    paths *p = user;
    size_t used = strlen(p->text);
    snprintf(p->text + used, sizeof(p->text) - used, "%s:%s ", path, m->kind);
    return --p->stop_after != 0;
}

static void expect_paths(void *m, tn_walk walk, const char *want) {
    paths p = {0};
    tn_module_each(m, walk, list_entry, &p);
    assert_string_equal(p.text, want);
}

/* ---- Registering ----------------------------------------------------------------------------- */

TEST(names_of_entries) {
    net n;
    net_init(&n);
    expect_paths(&n, (tn_walk){0}, "scale fc1.weight fc1.bias layers.2.weight ");
    expect_paths(&n, (tn_walk){.buffers = true},
                 "scale mean! fc1.weight fc1.bias layers.2.weight ");
    expect_paths(&n, (tn_walk){.buffers = true, .no_parameters = true, .scratch = true}, "mean! ");
    assert_int_equal(tn_module_count(&n), 1 + 12 + 4 + 12);
    assert_ptr_equal(tn_module_get(&n, "layers.2.weight"), n.fc2.weight);
    assert_ptr_equal(tn_module_get(&n, "mean"), n.mean);
    assert_ptr_equal(tn_module_child(&n, "layers.2"), &n.fc2.base);
    assert_ptr_equal(tn_module_child(&n, ""), &n.base);
    assert_null(n.fc2.bias);
    assert_true(tn_requires_grad(n.scale));
    assert_false(tn_requires_grad(n.mean));

    paths p = {.stop_after = 2};
    tn_module_each(&n, (tn_walk){0}, list_entry, &p);
    assert_string_equal(p.text, "scale fc1.weight ");
    p = (paths){0};
    tn_module_each_module(&n, list_module, &p);
    assert_string_equal(p.text, ":net fc1:linear layers.2:linear ");
    p = (paths){.stop_after = 1};
    tn_module_each_module(&n, list_module, &p);
    assert_string_equal(p.text, ":net ");

    assert_inert(tn_module_get(&n, "layers.3.weight"), TN_EVALUE, "layers.3.weight");
    assert_inert(tn_module_get(&n, "cache"), TN_EVALUE, "cache");
    assert_null(tn_module_child(&n, "fc"));
    assert_error(TN_EVALUE, "\"fc\"");
    tn_module_finish(&n);
}

TEST(refused_names) {
    const char *bad[] = {"", ".x", "x.", NULL,
                         "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        net n;
        net_init(&n);
        TN_SCOPE;
        tn_tensor *field;
        assert_int_equal(tn_module_param(&n, bad[i], &field, tn_ones(TN_DIMS(2), TN_F32)),
                         TN_EVALUE);
        assert_error(TN_EVALUE, "name");
        assert_true(tn_is_inert(field));
        tn_module_finish(&n);
    }
}

TEST(used_twice) {
    net n;
    net_init(&n);
    tn_tensor *t = tn_ones(TN_DIMS(2), TN_F32), *field = NULL;
    tn_linear other;
    tn_linear_init(&other, 1, 1, tn_linear_defaults());
    tn_module_param(&n, "fc1", &field, t);
    assert_error(TN_EVALUE, "\"fc1\" already");
    tn_module_buffer(&n, "scale", &field, t);
    assert_error(TN_EVALUE, "\"scale\" already");
    tn_module_add(&n, "mean", &other);
    assert_error(TN_EVALUE, "\"mean\" already");
    /* a field that is already registered keeps its tensor */
    tn_module_param(&n, "again", &n.scale, t);
    assert_error(TN_EVALUE, "field of \"again\"");
    assert_false(tn_is_inert(n.scale));
    tn_module_add(&n, "again", &n.fc1);
    assert_error(TN_ESTATE, "has one parent");
    tn_module_add(&n.fc1, "outer", &n);
    assert_error(TN_EVALUE, "contain itself");
    tn_call(&n, tn_ones(TN_DIMS(1, 3), TN_F32)); /* its init failed */
    assert_error(TN_ESTATE, "not complete");
    tn_module_finish(&other);
    tn_module_finish(&n);
}

TEST(refused_tensors) {
    tn_module m;
    tn_module_init(&m, "m", net_forward);
    tn_tensor *field;
    tn_module_param(&m, "a", &field, tn_ones(TN_DIMS(2), TN_I64));
    assert_error(TN_EDTYPE, "i64");
    tn_tensor *leaf = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
    tn_module_param(&m, "b", &field, tn_mul(leaf, leaf));
    assert_error(TN_ESTATE, "");
    tn_module_param(&m, "c", NULL, leaf);
    assert_error(TN_EVALUE, "field of \"c\" is NULL");
    tn_raise(TN_EVALUE, "an earlier error");
    assert_int_equal(tn_module_param(&m, "d", &field, leaf), TN_EVALUE);
    assert_inert(field, TN_EVALUE, "earlier");
    tn_module_finish(&m);
}

TEST(buffers_are_set) {
    net n;
    net_init(&n);
    {
        TN_SCOPE;
        tn_tensor *first = n.mean;
        assert_int_equal(tn_module_set_buffer(&n, "mean", tn_ones(TN_DIMS(7), TN_F64)), TN_OK);
        assert_ptr_not_equal(n.mean, first);
        tn_module_set_buffer(&n, "cache", tn_ones(TN_DIMS(2), TN_F32));
    }
    assert_int_equal(tn_count(n.mean), 7);
    expect_paths(&n, (tn_walk){.buffers = true, .no_parameters = true}, "mean! ");
    expect_paths(&n, (tn_walk){.buffers = true, .no_parameters = true, .scratch = true},
                 "mean! cache! ");
    tn_module_set_buffer(&n, "mean", n.mean); /* itself */
    assert_int_equal(tn_count(n.mean), 7);
    tn_module_set_buffer(&n, "mean", NULL);
    assert_null(n.mean);
    tn_module_set_buffer(&n, "scale", NULL);
    assert_error(TN_EVALUE, "no buffer \"scale\"");
    tn_module_finish(&n);
    assert_null(n.cache);
}

/* ---- Ties ------------------------------------------------------------------------------------ */

typedef struct tied {
    tn_module base;
    tn_embedding wte;
    tn_linear head;
} tied;

static tn_tensor *tied_forward(tn_module *self, tn_tensor *x) {
    tied *t = (tied *)self;
    return tn_call(&t->head, tn_call(&t->wte, x));
}

static void tied_init(tied *t) {
    tn_module_init(t, "tied", tied_forward);
    tn_linear_options no_bias = TN_WITH(tn_linear, .bias = false);
    tn_linear_init(&t->head, 4, 6, no_bias);
    tn_embedding_init(&t->wte, 6, 4, tn_embedding_defaults());
    tn_module_add(t, "head", &t->head); /* the second name comes first */
    tn_module_add(t, "wte", &t->wte);
}

TEST(tied_parameters) {
    tied t;
    tied_init(&t);
    assert_int_equal(tn_module_tie(&t, "head.weight", "wte.weight"), TN_OK);
    assert_ptr_equal(t.head.weight, t.wte.weight);
    assert_int_equal(tn_module_count(&t), 24);
    expect_paths(&t, (tn_walk){0}, "wte.weight ");
    expect_paths(&t, (tn_walk){.with_shared = true}, "head.weight+ wte.weight ");
    expect_paths(&t.head, (tn_walk){0}, "weight "); /* alone, the parameter has no other name */
    assert_int_equal(tn_module_count(&t.head), 24);
    {
        TN_SCOPE; /* both uses add to one gradient */
        int64_t data[] = {1, 2};
        tn_backward(tn_sum_all(tn_call(&t, TN_FROM(data, TN_DIMS(1, 2), TN_I64))));
        assert_int_equal(tn_count(tn_grad_of(t.wte.weight)), 24);
        assert_true(tn_at(tn_grad_of(t.wte.weight), TN_DIMS(5, 0)) != 0.0);
    }
    tn_module_tie(&t, "wte.weight", "wte.weight");
    assert_error(TN_EVALUE, "itself");
    tn_module_tie(&t, "wte.weight", "nothing");
    assert_error(TN_EVALUE, "\"nothing\"");
    tn_module_finish(&t);
}

TEST(ties_that_do_not_fit) {
    net n;
    net_init(&n);
    tn_module_tie(&n, "fc1.weight", "layers.2.weight");
    assert_error(TN_ESHAPE, "fc1.weight is [4, 3] but layers.2.weight is [3, 4]");
    tn_module_finish(&n);
    tied t;
    tied_init(&t);
    tn_module_finish(&t.wte);
    tn_embedding_init(&t.wte, 6, 4, TN_WITH(tn_embedding, .dtype = TN_F64));
    tn_module_add(&t, "wte", &t.wte);
    tn_module_tie(&t, "head.weight", "wte.weight");
    assert_error(TN_EDTYPE, "head.weight is f32 but wte.weight is f64");
    tn_module_finish(&t);
}

/* ---- Freezing -------------------------------------------------------------------------------- */

static bool list_wanted(const tn_entry *entry, void *user) {
    return !tn_requires_grad(entry->stored) || list_entry(entry, user);
}

/* These parameters require a gradient. */
static void are_wanted(net *n, const char *expected) {
    paths p = {.stop_after = 100};
    tn_module_each(n, (tn_walk){0}, list_wanted, &p);
    assert_string_equal(p.text, expected);
}

TEST(freezing_by_path) {
    net n;
    net_init(&n);
    assert_int_equal(tn_freeze(&n, "fc1.weight  scale "), 2); /* parameters */
    are_wanted(&n, "fc1.bias layers.2.weight ");
    assert_int_equal(tn_freeze(&n, "fc1"), 1); /* the module's only unfrozen parameter */
    are_wanted(&n, "layers.2.weight ");
    assert_int_equal(tn_freeze(&n, "layers.* layers"), 1);
    are_wanted(&n, "");
    assert_int_equal(tn_unfreeze(&n, "*.bias *.*.w*"), 2);
    are_wanted(&n, "fc1.bias layers.2.weight ");
    assert_int_equal(tn_unfreeze(&n, "*"), 2);
    assert_int_equal(tn_unfreeze(&n, "*"), 0);
    assert_int_equal(tn_freeze(&n, "*.weight"), 1); /* not layers.2.weight: * matches no dot */
    assert_int_equal(tn_unfreeze(&n, "fc1.*"), 1);
    are_wanted(&n, "scale fc1.weight fc1.bias layers.2.weight ");
    assert_int_equal(tn_freeze(&n, ""), 0);

    /* A path that matches no parameter changes nothing. Buffers are not parameters. */
    static const char *const wrong[] = {"fc3",          "fc1 fc", "fc1.weigh",
                                        "fc*.weight.x", "mean",   "layers.3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(tn_freeze(&n, wrong[i]), -1);
        assert_error(TN_EVALUE, "freeze: no parameter of the net matches \"");
    }
    assert_int_equal(tn_unfreeze(&n, "fc1.weight fc9.*"), -1);
    assert_error(TN_EVALUE, "unfreeze: no parameter of the net matches \"fc9.*\"");
    assert_int_equal(tn_freeze(&n, NULL), -1);
    assert_error(TN_EVALUE, "freeze: the paths are NULL");
    are_wanted(&n, "scale fc1.weight fc1.bias layers.2.weight ");
    tn_module_finish(&n);
}

/* A tied parameter can be frozen by either name. */
TEST(freezing_tied) {
    tied t;
    tied_init(&t);
    assert_int_equal(tn_module_tie(&t, "head.weight", "wte.weight"), TN_OK);
    assert_int_equal(tn_freeze(&t, "head"), 1);
    assert_false(tn_requires_grad(t.wte.weight));
    assert_int_equal(tn_unfreeze(&t, "wte head"), 1);
    assert_true(tn_requires_grad(t.wte.weight));
    tn_module_finish(&t);
}

/* ---- Flags ----------------------------------------------------------------------------------- */

TEST(flags_of_modules) {
    net n;
    net_init(&n);
    tn_module_train(&n, false);
    assert_false(n.base.training || n.fc1.base.training || n.fc2.base.training);
    tn_module_train(&n.fc1, true);
    assert_true(n.fc1.base.training);
    assert_false(n.base.training);

    tn_module_requires_grad(&n.fc1, false);
    assert_false(tn_requires_grad(n.fc1.weight) || tn_requires_grad(n.fc1.bias));
    assert_true(tn_requires_grad(n.fc2.weight));
    {
        TN_SCOPE;
        tn_backward(tn_sum_all(tn_call(&n, tn_ones(TN_DIMS(2, 3), TN_F32))));
        assert_null(tn_grad_of(n.fc1.weight));
        assert_non_null(tn_grad_of(n.fc2.weight));
    }
    tn_module_zero_grad(&n);
    assert_null(tn_grad_of(n.fc2.weight));
    tn_module_set_recompute(&n, true);
    assert_true(n.base.recompute);
    assert_false(n.fc1.base.recompute);
    tn_module_finish(&n);
}

TEST(printed_modules) {
    net n;
    net_init(&n);
    char *text = NULL;
    size_t size;
    tn_freeze(&n, "fc1.bias");
    FILE *file = open_memstream(&text, &size);
    tn_module_print(&n, file);
    fclose(file);
    assert_string_equal(text, "net: 29 parameters\n"
                              "  scale [] f32\n"
                              "  mean [3] f32, buffer\n"
                              "  fc1 linear: 16 parameters\n"
                              "    weight [4, 3] f32\n"
                              "    bias [4] f32, frozen\n"
                              "  layers.2 linear: 12 parameters\n"
                              "    weight [3, 4] f32\n");
    free(text);
    tn_module_finish(&n);
}

/* The drawn graph names parameters by their paths, other leaves by the input that they are, and
 * results by their operations. */
TEST(named_graph) {
    net n;
    net_init(&n);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, 3), TN_F32), true);
    tn_tensor *y = tn_sum_all(tn_call(&n, x));
    const char *path = temp_path("graph.dot");
    assert_int_equal(tn_module_graph_dot(&n, y, path), TN_OK);
    size_t bytes;
    char *text = (char *)temp_read(path, &bytes);
    static const char *const labels[] = {"\"scale\\nf32 []\"",
                                         "\"fc1.weight\\nf32 [4, 3]\"",
                                         "\"fc1.bias\\nf32 [4]\"",
                                         "\"layers.2.weight\\nf32 [3, 4]\"",
                                         "\"x\\nf32 [2, 3]\"",
                                         "\"relu\\n[2, 4]\"",
                                         "\"sum\\n[]\""};
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        assert_non_null(strstr(text, labels[i]));
    }
    free(text);
    temp_clean(state);
    assert_int_equal(tn_module_graph_dot(NULL, y, path), TN_EVALUE);
    tn_error_clear();
    tn_module_finish(&n);
}

/* ---- What sharding sees ---------------------------------------------------------------------- */

static bool exchange_field(const tn_entry *entry, void *user) {
    TN_SCOPE;
    tn_tensor *old = *entry->field;
    *entry->field = tn_keep(tn_set_requires_grad(tn_zeros(tn_shape(old), TN_F32), true));
    tn_release(old);
    return true;
}

TEST(exchanged_fields) {
    net n;
    net_init(&n);
    tn_module_each(&n, (tn_walk){.with_shared = true}, exchange_field, NULL);
    {
        TN_SCOPE;
        assert_true(tn_item(tn_sum_all(tn_call(&n, tn_ones(TN_DIMS(2, 3), TN_F32)))) == 0.0);
    }
    tn_module_finish(&n);
}

/* ---- Finishing ------------------------------------------------------------------------------- */

TEST(finished_modules) {
    net n;
    net_init(&n);
    tn_tensor *x = tn_ones(TN_DIMS(1, 3), TN_F32);
    tn_module_finish(&n.fc1); /* a child that is finished alone leaves its parent */
    expect_paths(&n, (tn_walk){0}, "scale layers.2.weight ");
    tn_call(&n, x);
    assert_error(TN_ESTATE, "(linear) is finished");
    tn_module_finish(&n);
    assert_null(n.scale);
    assert_null(n.fc2.weight);
    tn_call(&n, x);
    assert_error(TN_ESTATE, "(net) is finished");
    tn_module_finish(&n); /* twice */
    tn_module_finish(NULL);
    memset(&n, 0, sizeof(n));
    tn_module_finish(&n);
}

TEST(not_modules) {
    tn_tensor *x = tn_ones(TN_DIMS(1, 3), TN_F32);
    _Alignas(16) char junk[512];
    memset(junk, 0x5a, sizeof(junk));
    assert_inert(tn_call(NULL, x), TN_EVALUE, "module is NULL");
    char want[64];
    snprintf(want, sizeof(want), "%p is not a module", (void *)junk);
    tn_call(junk, x);
    assert_error(TN_EVALUE, want);
    tn_call(junk + 1, x);
    assert_error(TN_EVALUE, "is not a module");
    tn_module_finish(junk);
    assert_error(TN_EVALUE, "is not a module");
    assert_inert(tn_call(x, x), TN_EVALUE,
                 "a tensor [1, 3] instead of a module (tn_parameters(&t, 1) makes a module");
    assert_int_equal(tn_module_count(x), 0);
    assert_error(TN_EVALUE, "a tensor [1, 3] instead of a module");
    tn_module_finish(x);
    assert_error(TN_EVALUE, "a tensor [1, 3] instead of a module");
    assert_int_equal(tn_module_count(junk), 0);
    assert_error(TN_EVALUE, "is not a module");
    tn_module_init(NULL, "m", net_forward);
    assert_error(TN_EVALUE, "NULL");
    tn_module m;
    tn_module_init(&m, "m", NULL);
    assert_error(TN_EVALUE, "forward is NULL");
    tn_call(&m, x);
    assert_error(TN_ESTATE, "not complete");
    tn_module_finish(&m);
}
