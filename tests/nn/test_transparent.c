/* Children without a name are not part of paths, in walks, errors, files and descriptions. */
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

/* `outside` is in the model itself, `first` in a transparent part, `second` in a transparent part
 * of that: in paths all three are children of the model. */
typedef struct part {
    tn_module base;
    tn_linear linear;
    tn_tensor *scale;
} part;

typedef struct net {
    tn_module base;
    tn_linear outside;
    part stem, inner;
} net;

static tn_tensor *part_forward(tn_module *self, tn_tensor *x) {
    return tn_call(&((part *)self)->linear, x);
}

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    return tn_call(&n->inner, tn_call(&n->stem, tn_call(&n->outside, x)));
}

static void part_init(part *p, const char *name, int64_t in) {
    TN_SCOPE;
    tn_module_init(p, "part", part_forward);
    tn_linear_init(&p->linear, in, 3, TN_WITH(tn_linear, .bias = false));
    tn_module_add(p, name, &p->linear);
}

static void net_init_with(net *n, int64_t inner_width) {
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->outside, 3, 3, TN_WITH(tn_linear, .bias = false));
    part_init(&n->stem, "first", 3);
    part_init(&n->inner, "second", inner_width);
    tn_module_add(n, "outside", &n->outside);
    tn_module_add(n, "", &n->stem);
    tn_module_add(&n->stem, "", &n->inner);
}

static void net_init(net *n) {
    net_init_with(n, 3);
}

static bool list_entry(const tn_entry *entry, void *user) {
    strcat(strcat(user, entry->path), " ");
    return true;
}

static bool list_module(tn_module *m, const char *path, void *user) {
    strcat(strcat(strcat(user, path), ":"), m->kind);
    strcat(user, " ");
    return true;
}

TEST(paths_without_it) {
    net n;
    net_init(&n);
    char text[512] = "";
    tn_module_each(&n, (tn_walk){0}, list_entry, text);
    assert_string_equal(text, "outside.weight first.weight second.weight ");
    text[0] = 0;
    tn_module_each_module(&n, list_module, text);
    assert_string_equal(text, ":net outside:linear :part first:linear :part second:linear ");
    assert_ptr_equal(tn_module_get(&n, "second.weight"), n.inner.linear.weight);
    assert_ptr_equal(tn_module_child(&n, "second"), &n.inner.linear);
    assert_ptr_equal(tn_module_child(&n.stem, "second"), &n.inner.linear);
    assert_ptr_equal(tn_module_child(&n, ""), &n);
    assert_inert(tn_module_get(&n, ".weight"), TN_EVALUE, "no parameter");
    tn_module_train(&n, false);
    assert_false(n.inner.base.training || n.inner.linear.base.training);
    tn_module_finish(&n);
}

/* All names, also those from transparent parts, are names of the model and must differ. */
TEST(names_that_are_taken) {
    net n;
    net_init(&n);
    part more;
    part_init(&more, "first", 3);
    assert_int_equal(tn_module_add(&n, "", &more), TN_EVALUE);
    assert_error(TN_EVALUE, "module_add: net has something named \"first\" already");
    tn_module_finish(&n);

    net_init(&n);
    part_init(&more, "second", 3);
    tn_module_add(&n.inner, "", &more); /* in the part that has the name */
    assert_error(TN_EVALUE, "net has something named \"second\" already");
    tn_module_finish(&n);

    net_init(&n);
    tn_tensor *ones = tn_ones(TN_DIMS(3), TN_F32), *field;
    tn_module_param(&n.inner, "outside", &n.inner.scale, ones);
    assert_error(TN_EVALUE, "net has something named \"outside\" already");
    tn_module_param(&n, "second", &field, ones);
    assert_error(TN_EVALUE, "net has something named \"second\" already");
    tn_module_finish(&n);

    net_init(&n);
    part_init(&more, "third", 3);
    assert_int_equal(tn_module_add(&n, "", &more), TN_OK); /* any number of them */
    assert_int_equal(tn_module_param(&n, "", &field, ones), TN_EVALUE);
    assert_error(TN_EVALUE, "the name \"\" must have 1 to 63 characters");
    assert_int_equal(tn_module_param(&n, "caf\xe9", &field, ones), TN_EVALUE);
    assert_error(TN_EVALUE, "net: the name \"caf\xe9\" is not UTF-8");
    tn_module_finish(&n);
}

TEST(ties_and_files) {
    net n, other;
    net_init(&n);
    net_init(&other);
    assert_int_equal(tn_module_tie(&n, "second.weight", "outside.weight"), TN_OK);
    assert_ptr_equal(n.inner.linear.weight, n.outside.weight);
    assert_int_equal(tn_module_count(&n), 18);
    const char *path = temp_path("transparent.safetensors");
    assert_int_equal(tn_save(&n, path), TN_OK);
    tn_module_tie(&other, "second.weight", "outside.weight");
    assert_int_equal(tn_load(&other, path), TN_OK);
    tn_tensor *x = tn_randn(TN_DIMS(2, 3), TN_F32);
    assert_true(tn_equal(tn_call(&n, x), tn_call(&other, x)));
    tn_module_finish(&n);
    tn_module_finish(&other);
}

/* The same three linears without transparent parts: either model loads the other's checkpoint. */
TEST(files_of_a_flat_model) {
    struct {
        tn_module base;
        tn_linear at[3];
    } flat;
    net n;
    net_init(&n);
    tn_module_init(&flat, "net", net_forward);
    static const char *const names[] = {"outside", "first", "second"};
    for (int i = 0; i < 3; i++) {
        tn_linear_init(&flat.at[i], 3, 3, TN_WITH(tn_linear, .bias = false));
        tn_module_add(&flat, names[i], &flat.at[i]);
    }
    const char *path = temp_path("flat.safetensors");
    tn_checkpoint c = {.model = &flat};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    c.model = &n;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    assert_true(tn_equal(n.inner.linear.weight, flat.at[2].weight));
    tn_module_finish(&n);
    tn_module_finish(&flat);
}

TEST(saved_description) {
    net n;
    net_init(&n);
    const char *path = temp_path("described.safetensors");
    assert_int_equal(tn_save(&n, path), TN_OK);
    tn_safetensors *f = tn_safetensors_open(path);
    assert_string_equal(tn_safetensors_metadata(f, "model"),
                        "{\".\":{\"kind\":\"net\"},\"outside\":{\"kind\":\"linear\"},"
                        "\"first\":{\"kind\":\"linear\"},\"second\":{\"kind\":\"linear\"}}");
    tn_safetensors_close(f);
    tn_module_finish(&n);
}

/* An error names the path that the program knows. */
TEST(errors_name_known_paths) {
    net n;
    net_init_with(&n, 4);
    assert_inert(tn_call(&n, tn_ones(TN_DIMS(1, 3), TN_F32)), TN_ESHAPE, "(in net.second)");
    tn_module outer;
    tn_module_init(&outer, "outer", net_forward);
    tn_module_add(&outer, "inside", &n);
    tn_linear moved = n.inner.linear;
    assert_inert(tn_call(&moved, tn_ones(TN_DIMS(1, 4), TN_F32)), TN_ESTATE, "has moved");
    tn_module_count(&outer);
    assert_error(TN_ESTATE, "the linear inside.second has moved");
    tn_module_count(&n.inner.linear); /* which did not move */
    tn_module_finish(&outer);
}
