/* Layers on the heap and who frees them; TN_ADD and TN_OWN; sequentials from a list, lists of
 * modules, functions as modules. */
#include <string.h>

#include "tests/support/no_memory.h"

#include <tern/tern.h>

#include "nn/layer.h"

/* x + fc(x): a user's kind of module, for lists. */
typedef struct block {
    tn_module base;
    tn_linear *fc;
} block;

static tn_tensor *block_forward(tn_module *self, tn_tensor *x) {
    return tn_add(x, tn_call(((block *)self)->fc, x));
}

static block *block_new(int64_t width) {
    block *m = tn_module_new(sizeof(*m), "block", block_forward);
    if (m) { TN_OWN(m, fc, tn_linear_new(width, width)); }
    return m;
}

typedef struct net {
    tn_module base;
    tn_linear in;     /* embedded */
    tn_sequential *h; /* owned */
    tn_module_list *heads;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    x = tn_call(n->h, tn_call(&n->in, x));
    return tn_call(tn_module_child(n->heads, "b"), x);
}

static void net_init(net *n) {
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->in, 3, 4, tn_linear_defaults());
    TN_ADD(n, in);
    TN_OWN(n, h, TN_SEQUENTIAL(block_new(4), TN_FN(tn_relu), block_new(4), tn_dropout_new(0)));
    TN_OWN(n, heads, tn_module_list_new());
    tn_module_own(n->heads, "a", tn_linear_new(4, 1));
    tn_module_own(n->heads, "b", tn_linear_new(4, 2));
}

TEST(names_come_from_fields) {
    net n;
    net_init(&n);
    assert_ptr_equal(tn_module_get(&n, "in.weight"), n.in.weight);
    const block *first = (block *)tn_module_at(n.h, 0);
    assert_ptr_equal(tn_module_get(&n, "h.0.fc.weight"), first->fc->weight);
    assert_string_equal(tn_module_child(&n, "h.1")->kind, "relu");
    assert_int_equal(tn_module_children(n.h), 4);
    assert_int_equal(tn_size(tn_module_get(&n, "heads.b.bias"), 0), 2);
    assert_int_equal(tn_module_count(&n), 16 + 20 + 20 + 5 + 10);
    tn_tensor *x = tn_randn(TN_DIMS(5, 3), TN_F32), *h = tn_call(&n.in, x);
    h = tn_call(tn_module_at(n.h, 2), tn_relu(tn_call(tn_module_at(n.h, 0), h)));
    tn_tensor *want = tn_call(tn_module_at(n.heads, 1), h);
    assert_true(tn_equal(tn_call(&n, x), want));
    tn_module_finish(&n);
    assert_null(n.in.weight); /* h and heads are freed, too: the sanitizers would report leaks */
}

TEST(on_the_heap) {
    tn_module *all[] = {
        (tn_module *)tn_linear_new(4, 4),
        (tn_module *)tn_linear_new_with(4, 4, TN_WITH(tn_linear, .bias = false)),
        (tn_module *)tn_layer_norm_new(4),
        (tn_module *)tn_layer_norm_new_with(4, tn_norm_defaults()),
        (tn_module *)tn_rms_norm_new(4),
        (tn_module *)tn_rms_norm_new_with(4, tn_norm_defaults()),
        (tn_module *)tn_sequential_new(),
        (tn_module *)tn_function_new("same", tn_identity),
        (tn_module *)TN_FN_WITH(tn_pow_scalar, 3.0),
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_false(tn_is_inert(tn_call(all[i], tn_ones(TN_DIMS(2, 4), TN_F32))));
        tn_module_free(all[i]);
    }
    tn_conv *convs[] = {
        tn_conv1d_new(2, 3, 2),           tn_conv2d_new(2, 3, 2),
        tn_conv3d_new(2, 3, 2),           tn_conv_transpose1d_new(2, 3, 2),
        tn_conv_transpose2d_new(2, 3, 2), tn_conv_transpose3d_new(2, 3, 2),
    };
    for (int i = 0; i < 6; i++) {
        tn_dims size = {.ndim = 2 + i % 3, .size = {2, 4, 4, 4}}; /* no batch */
        tn_tensor *y = tn_call(convs[i], tn_ones(size, TN_F32));
        assert_int_equal(tn_size(y, 0), 3);
        assert_int_equal(tn_size(y, -1), i < 3 ? 3 : 5);
        tn_module_free(convs[i]);
    }
    tn_embedding *rows = tn_embedding_new(5, 3);
    assert_int_equal(tn_size(tn_call(rows, tn_arange(0, 2, 1, TN_I64)), 1), 3);
    tn_embedding *padded = tn_embedding_new_with(5, 3, TN_WITH(tn_embedding, .padding_idx = 2));
    tn_tensor *two = tn_call(padded, tn_full(TN_DIMS(1), 2, TN_I64));
    assert_true(tn_equal(two, tn_zeros_like(two)));
    tn_module_free(padded);
    tn_module_finish(rows);
    tn_module_free(rows); /* finish left the struct, which is freed here */
    tn_module_free(NULL);
}

/* A function's number is one of its fields, which are compared when weights are loaded. */
TEST(with_a_number) {
    tn_function *cube = TN_FN_WITH(tn_pow_scalar, 3.0);
    assert_float_equal(tn_item(tn_call(cube, tn_scalar(2.0, TN_F32))), 8.0, 0.0);
    assert_string_equal(cube->base.kind, "pow_scalar");
    assert_string_equal(cube->base.fields[0].name, "number");
    assert_true((const char *)cube + cube->base.fields[0].offset == (const char *)&cube->number);
    tn_module_free(cube);
}

TEST(who_cannot_be_owned) {
    block *m = block_new(3);
    const tn_linear *fc = m->fc;
    assert_null(tn_module_own(m, "fc", tn_linear_new(3, 3))); /* which is freed */
    assert_error(TN_EVALUE, "block has something named \"fc\" already");
    assert_inert(tn_call(m, tn_ones(TN_DIMS(1, 3), TN_F32)), TN_ESTATE, "not complete");
    TN_OWN(m, fc, tn_linear_new(3, 3));
    assert_null(m->fc); /* the field does not keep what was freed */
    assert_error(TN_EVALUE, "already");
    assert_null(tn_module_own(NULL, "fc", tn_linear_new(3, 3)));
    assert_error(TN_EVALUE, "the module is NULL");
    assert_ptr_equal(tn_module_at(m, 0), fc);
    assert_null(tn_module_at(m, 1));
    assert_error(TN_EINDEX, "block has 1 children, but none at 1");
    tn_module_free(m);
    assert_null(tn_module_new(3, "m", block_forward));
    assert_error(TN_EVALUE, "m: 3 bytes are too few for a tn_module");
    tn_linear here;
    tn_linear_init(&here, 2, 2, tn_linear_defaults());
    tn_module_free(&here);
    assert_error(TN_EVALUE, "the module was not made by");
    tn_module_finish(&here);
}

TEST(lists_have_no_forward) {
    tn_module_list *list = tn_module_list_new();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tn_module_append(list, block_new(2)), TN_OK);
    }
    assert_string_equal(tn_module_at(list, 2)->name, "2");
    tn_module_free(tn_module_at(list, 1)); /* the next one appended does not take a name in use */
    assert_int_equal(tn_module_append(list, block_new(2)), TN_OK);
    assert_string_equal(tn_module_at(list, 2)->name, "3");
    assert_inert(tn_call(list, tn_ones(TN_DIMS(1, 2), TN_F32)), TN_EUNSUPPORTED, "has no forward");
    tn_module_free(list);
}

/* ---- Parts of a sequential ------------------------------------------------------------------- */

static tn_values both_forward(tn_module *self, tn_values in, void *context) {
    assert_null(context);
    assert_int_equal(in.n, 2);
    return tn_values_of(tn_add(in.v[0], in.v[1]), in.v[1]);
}

static tn_module *both_new(void) {
    return tn_module_new_values(sizeof(tn_module), "both", both_forward);
}

/* Several values pass from module to module, and a range runs some of the modules. */
TEST(values_and_ranges) {
    tn_sequential *m = TN_SEQUENTIAL(both_new(), both_new(), both_new());
    tn_tensor *a = tn_full(TN_DIMS(2), 1, TN_F32), *b = tn_full(TN_DIMS(2), 10, TN_F32);
    tn_values all = tn_call_values(m, tn_values_of(a, b), NULL);
    assert_int_equal(all.n, 2);
    assert_true(tn_item(tn_sum_all(all.v[0])) == 62 && all.v[1] == b);
    tn_values x = tn_values_of(a, b);
    for (int i = 0; i < 3; i++) {
        x = tn_call_values(m, x, &(tn__range){i, i + 1});
        assert_true(tn_item(tn_sum_all(x.v[0])) == 2 + 20 * (i + 1));
    }
    x = tn_call_values(m, tn_values_of(a, b), &(tn__range){1, 0}); /* to the end */
    assert_true(tn_item(tn_sum_all(x.v[0])) == 42);
    x = tn_call_values(m, tn_values_of(a, b), &(tn__range){2, 2}); /* none of them */
    assert_true(x.v[0] == a && x.v[1] == b);
    const tn__range wrong[] = {{0, 4}, {-1, 2}, {2, 1}, {4, 0}};
    for (int i = 0; i < 4; i++) {
        assert_inert(tn_call_values(m, tn_values_of(a, b), (void *)&wrong[i]).v[0], TN_EINDEX,
                     "of 3");
    }
    tn_module_free(m);
}

static void build_and_call(void) {
    TN_SCOPE;
    net n;
    tn_module_init(&n, "net", net_forward);
    tn_linear_init(&n.in, 3, 4, tn_linear_defaults());
    TN_ADD(&n, in);
    TN_OWN(&n, h, TN_SEQUENTIAL(block_new(4), TN_FN(tn_relu), tn_layer_norm_new(4)));
    TN_OWN(&n, heads, tn_module_list_new());
    if (n.heads) {
        tn_module_own(n.heads, "b", tn_embedding_new(4, 2));
        tn_module_own(n.heads, "c", tn_rms_norm_new(4));
    }
    tn_call(&n.in, tn_ones(TN_DIMS(1, 3), TN_F32));
    tn_module_finish(&n);
}

TEST(no_memory) {
    every_allocation(build_and_call);
}
