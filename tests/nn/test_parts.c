/* A parameter of which only a part is stored here: what the module's record says, which functions
 * work on the part, and what is refused. */
#include <string.h>

#include "nn/module.h"
#include "optim/optim.h"
#include "tests/support/test.h"

#include <tern/tern.h>

/* head.weight is wte.weight. */
typedef struct net {
    tn_module base;
    tn_linear wte, head;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    return tn_call(&n->head, tn_call(&n->wte, x));
}

static void net_init(net *n) {
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->wte, 4, 4, tn_linear_defaults());
    tn_linear_init(&n->head, 4, 4, TN_WITH(tn_linear, .bias = false));
    tn_module_add(n, "wte", &n->wte);
    tn_module_add(n, "head", &n->head);
    tn_module_tie(n, "head.weight", "wte.weight");
}

static tn_status sum_nothing(const tn_parts *p, double *values, int n) {
    return TN_OK;
}

static const tn_parts others = {.sum = sum_nothing, .counts = true};

/* Elements [6, 11) of the 16. */
static const tn_layout middle = {{2, {4, 4}}, -1, 1, 0, 1, 6, 5};

static tn_entry found;

static bool find_entry(const tn_entry *entry, void *user) {
    if (strcmp(entry->path, user) != 0) { return true; }
    found = *entry;
    return false;
}

static const tn_entry *entry_of(void *m, const char *path) {
    found = (tn_entry){0};
    tn_module_each(m, (tn_walk){.with_shared = true}, find_entry, (void *)path);
    return &found;
}

/* ---- What the record says -------------------------------------------------------------------- */

TEST(whole_unless_told) {
    net n;
    net_init(&n);
    const tn_entry *e = entry_of(&n, "wte.weight");
    assert_ptr_equal(e->stored, n.wte.weight);
    assert_null(e->parts);
    assert_true(tn_dims_equal(e->layout.whole, TN_DIMS(4, 4)));
    assert_int_equal(e->layout.dim, -1);
    assert_int_equal(e->layout.pieces * e->layout.slices, 1);
    assert_int_equal(e->layout.start, 0);
    assert_int_equal(e->layout.length, 16);
    tn_module_finish(&n);
}

TEST(tied_names_share_a_part) {
    net n;
    net_init(&n);
    tn_tensor *part = tn_zeros(TN_DIMS(5), TN_F32);
    /* by its second name, from a module that does not have the first */
    assert_int_equal(tn_module_set_part(&n.head, "weight", part, middle, &others), TN_OK);
    const char *const names[] = {"wte.weight", "head.weight"};
    for (int i = 0; i < 2; i++) {
        const tn_entry *e = entry_of(&n, names[i]);
        assert_ptr_equal(e->stored, part);
        assert_ptr_equal(*e->field, n.wte.weight);
        assert_ptr_equal(e->parts, &others);
        assert_int_equal(e->layout.start, 6);
        assert_int_equal(e->layout.length, 5);
    }
    assert_ptr_equal(entry_of(&n, "wte.bias")->stored, n.wte.bias);
    assert_int_equal(tn_module_count(&n), 16 + 4); /* counts the whole */

    tn_linear third; /* tied after the part was set */
    tn_linear_init(&third, 4, 4, TN_WITH(tn_linear, .bias = false));
    tn_module_add(&n, "third", &third);
    assert_int_equal(tn_module_tie(&n, "third.weight", "head.weight"), TN_OK);
    assert_ptr_equal(entry_of(&n, "third.weight")->stored, part);
    tn_module_finish(&n);
}

/* c_attn's 12 rows are 3 pieces: this rank has the second half of each. */
TEST(a_block_in_the_field) {
    tn_linear m;
    tn_linear_init(&m, 4, 6, tn_linear_defaults());
    tn_layout half = {TN_DIMS(12, 4), 0, 3, 1, 2, 0, 24};
    assert_int_equal(tn_module_set_part(&m, "weight", NULL, half, &others), TN_OK);
    assert_ptr_equal(entry_of(&m, "weight")->stored, m.weight);
    assert_int_equal(tn_module_count(&m), 12 * 4 + 6);

    tn_tensor *part = tn_zeros(TN_DIMS(7), TN_F32); /* and sharded within the block */
    half.start = 17;
    half.length = 7;
    assert_int_equal(tn_module_set_part(&m, "weight", part, half, &others), TN_OK);
    assert_ptr_equal(entry_of(&m, "weight")->stored, part);
    tn_module_finish(&m);
}

/* ---- What works on the part ------------------------------------------------------------------ */

TEST(freezing_and_zeroing) {
    net n;
    net_init(&n);
    tn_tensor *part = tn_zeros(TN_DIMS(5), TN_F32);
    tn_module_requires_grad(&n.wte, false);
    tn_module_set_part(&n, "wte.weight", part, middle, &others);
    assert_false(tn_requires_grad(part)); /* like the parameter */
    tn_module_requires_grad(&n, true);
    assert_true(tn_requires_grad(part) && tn_requires_grad(n.wte.weight));
    assert_int_equal(tn_storage_empty(n.wte.weight), TN_OK); /* between uses */
    tn_module_requires_grad(&n, false);
    assert_false(tn_requires_grad(part) || tn_requires_grad(n.wte.weight));
    tn_module_requires_grad(&n, true);

    tn_set_grad(part, tn_ones(TN_DIMS(5), TN_F32));
    tn_set_grad(n.wte.weight, tn_ones(TN_DIMS(4, 4), TN_F32));
    tn_module_zero_grad(&n);
    assert_null(tn_grad_of(part));
    assert_null(tn_grad_of(n.wte.weight));
    tn_module_finish(&n);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void assert_refused(net *n, const char *path, tn_tensor *part, tn_layout layout,
                           tn_status status, const char *text) {
    assert_int_equal(tn_module_set_part(n, path, part, layout, &others), status);
    assert_error(status, text);
    assert_ptr_equal(entry_of(n, "wte.weight")->stored, n->wte.weight);
}

TEST(parts_that_do_not_fit) {
    net n;
    net_init(&n);
    const char *w = "wte.weight";
    tn_tensor *part = tn_zeros(TN_DIMS(5), TN_F32);
    tn_layout l = middle;
    l.start = 12;
    assert_refused(&n, w, part, l, TN_EVALUE, "wte.weight: 5 elements from 12 on");
    l.start = -1;
    assert_refused(&n, w, part, l, TN_EVALUE, "5 elements from -1 on are not in a block of 16");
    const tn_layout wrong[] = {
        {TN_DIMS(4, 4), 2, 1, 0, 2, 0, 5},  {TN_DIMS(4, 4), 0, 1, 2, 2, 0, 5},
        {TN_DIMS(4, 4), 0, 1, -1, 2, 0, 5}, {TN_DIMS(4, 4), 0, 2, 0, 3, 0, 5},
        {TN_DIMS(4, 4), 0, 0, 0, 1, 0, 5},  {TN_DIMS(4, 4), -2, 1, 0, 1, 0, 5},
        {{.ndim = -1}, -1, 1, 0, 1, 0, 5}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_refused(&n, w, part, wrong[i], TN_EVALUE, "wte.weight: ");
    }
    tn_layout half = {TN_DIMS(4, 4), 0, 1, 0, 2, 0, 5};
    assert_refused(&n, w, part, half, TN_ESHAPE, "the field of wte.weight is [4, 4] but the block");
    assert_refused(&n, w, tn_zeros(TN_DIMS(4), TN_F32), middle, TN_ESHAPE, "has 4 elements, not 5");
    assert_refused(&n, w, NULL, middle, TN_ESHAPE, "the field of wte.weight has 16 elements");
    assert_refused(&n, w, tn_zeros(TN_DIMS(5), TN_BF16), middle, TN_EDTYPE, "the part is bf16");
    assert_refused(&n, "wte.nothing", part, middle, TN_EVALUE, "no parameter \"wte.nothing\"");
    assert_refused(&n, NULL, part, middle, TN_EVALUE, "(NULL)");
    tn_module_finish(&n);
}

static tn_status during;

static tn_values part_in_a_call(tn_module *m, tn_values in, void *user) {
    during = tn_module_set_part(m, "weight", user, middle, NULL);
    return in;
}

TEST(only_before_it_is_used) {
    net n;
    net_init(&n);
    tn_tensor *part = tn_zeros(TN_DIMS(5), TN_F32);
    /* an optimiser has it under one of its names */
    tn_optim *opt = tn_sgd(&n.wte, tn_sgd_defaults());
    assert_refused(&n, "head.weight", part, middle, TN_ESTATE,
                   "wte.weight is held by an optimiser");
    tn_optim_free(opt);

    tn_module_set_precision(&n, tn_precision_defaults());
    tn_module_hook(&n.wte, (tn_module_hooks){.before = part_in_a_call, .user = part});
    tn_call(&n, tn_ones(TN_DIMS(1, 4), TN_F32));
    assert_int_equal(during, TN_ESTATE);
    assert_error(TN_ESTATE, "is in use by a call");
    tn_module_finish(&n);
}

/* ---- Absent parameters ----------------------------------------------------------------------- */

static bool count_entries(const tn_entry *entry, void *user) {
    assert_false(entry->absent);
    ++*(int *)user;
    return true;
}

static bool count_states(const char *name, tn_tensor *t, void *user) {
    assert_non_null(strstr(name, "wte.bias."));
    ++*(int *)user;
    return true;
}

static bool match_weights(const tn_entry *entry, void *user) {
    return strstr(entry->path, "weight") != NULL;
}

static void stage_init(net *n) {
    net_init(n);
    assert_int_equal(tn__module_set_absent(&n->base, "head.weight"), TN_OK); /* and wte.weight */
}

/* Names, shapes and counts stay; elements are freed, and walks skip it. */
TEST(absent_under_all_names) {
    for (int deferred = 0; deferred < 2; deferred++) {
        net n;
        if (deferred) {
            TN_DEFER_INIT;
            net_init(&n);
        } else {
            net_init(&n);
        }
        int64_t count = tn_module_count(&n), before = tn_memory().allocated;
        assert_int_equal(tn__module_set_absent(&n.base, "wte.weight"), TN_OK);
        assert_int_equal(before - tn_memory().allocated, deferred ? 0 : 16 * 4);
        assert_int_equal(tn_module_materialize(&n), TN_OK);
        assert_true(tn_storage_is_empty(n.wte.weight) && !tn_storage_is_empty(n.wte.bias));
        assert_int_equal(tn_module_count(&n), count);
        int entries = 0;
        tn_module_each(&n, (tn_walk){.with_shared = true}, count_entries, &entries);
        assert_int_equal(entries, 1); /* wte.bias */
        tn_module_each(&n, (tn_walk){.absent = true, .with_shared = true}, find_entry,
                       "head.weight");
        assert_true(found.absent && found.shared);
        assert_int_equal(tn_count(tn_module_get(&n, "head.weight")), 16);
        assert_inert(tn_call(&n, tn_ones(TN_DIMS(1, 4), TN_F32)), TN_ESTATE, "");
        tn_module_finish(&n);
    }
}

TEST(printed_as_absent) {
    net n;
    stage_init(&n);
    char text[1000] = "";
    FILE *f = fmemopen(text, sizeof(text), "w");
    tn_module_print(&n, f);
    fclose(f);
    assert_non_null(strstr(text, "net: 20 parameters"));
    assert_non_null(strstr(text, "weight [4, 4] f32, not on this rank"));
    assert_null(strstr(text, "bias [4] f32, not"));
    tn_module_finish(&n);
}

/* Groups have the same members on all ranks, but each rank has elements of only some. */
TEST(optimisers_know_its_name) {
    net n, whole;
    stage_init(&n);
    net_init(&whole);
    tn_optim *opt = tn_adamw(&n, tn_adamw_defaults()), *all = tn_adamw(&whole, tn_adamw_defaults());
    assert_int_equal(tn_optim_split(opt, match_weights, NULL),
                     tn_optim_split(all, match_weights, NULL));
    for (int g = 0; g < tn_optim_groups(all); g++) {
        assert_int_equal(tn__optim_group_count(opt, g), tn__optim_group_count(all, g));
    }
    tn_set_grad(n.wte.bias, tn_ones(TN_DIMS(4), TN_F32));
    assert_float_equal(tn_optim_clip(opt, 1e9), 2.0, 1e-12);
    tn_tensor *before = tn_copy(n.wte.bias);
    assert_int_equal(tn_optim_step(opt), TN_OK);
    assert_false(tn_equal(n.wte.bias, before));
    tn_optim_zero_grad(opt);
    int states = 0;
    tn_optim_each(opt, count_states, &states);
    assert_int_equal(states, 3); /* for the bias */
    tn_optim_free(opt);
    tn_optim_free(all);
    tn_module_finish(&n);
    tn_module_finish(&whole);
}

/* Freezing by name, conversion, calls, quantizing, saving. */
TEST(what_else_asks_for_it) {
    net n;
    stage_init(&n);
    assert_int_equal(tn_freeze(&n, "wte.weight"), 1); /* naming it is not an error */
    assert_int_equal(tn_unfreeze(&n, "wte.*"), 1);
    tn_precision policy = tn_precision_defaults();
    policy.param = TN_F64;
    assert_int_equal(tn_module_set_precision(&n, policy), TN_OK);
    assert_true(tn_dtype_of(n.head.weight) == TN_F64 && n.head.weight == n.wte.weight);
    assert_true(tn_storage_is_empty(n.head.weight));
    assert_inert(tn_call(&n.wte, tn_ones(TN_DIMS(1, 4), TN_F32)), TN_ESTATE, "");
    assert_int_equal(tn_quantize(&n), TN_OK);
    assert_true(tn_dtype_of(n.wte.weight) == TN_F64 && !n.wte.weight_scale);
    assert_int_equal(tn_save(&n, "/tmp/never.safetensors"), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "\"wte.weight\" is sharded: this rank has 0 of its elements");
    tn_module_finish(&n);
}

static tn_tensor *first_alone(tn_module *self, tn_tensor *x) {
    return tn_call(&((net *)self)->wte, x);
}

/* A stage is called with a policy of the whole model: only parameters that are here are lent as
 * copies. */
TEST(nothing_of_it_is_lent) {
    net n;
    tn_module_init(&n, "net", first_alone);
    tn_linear_init(&n.wte, 4, 4, tn_linear_defaults());
    tn_linear_init(&n.head, 4, 4, tn_linear_defaults());
    tn_module_add(&n, "wte", &n.wte);
    tn_module_add(&n, "head", &n.head);
    assert_int_equal(tn__module_set_absent(&n.base, "head.weight"), TN_OK);
    assert_int_equal(tn_module_set_precision(&n, tn_precision_defaults()), TN_OK);
    tn_tensor *y = tn_call(&n, tn_ones(TN_DIMS(1, 4), TN_F32));
    assert_int_equal(tn_dtype_of(y), TN_BF16);
    tn_backward(tn_sum_all(y));
    assert_non_null(tn_grad_of(n.wte.weight));
    tn_module_finish(&n);
}

TEST(absent_too_late) {
    net n;
    net_init(&n);
    assert_int_equal(tn__module_set_absent(&n.base, "wte.nothing"), TN_EVALUE);
    assert_error(TN_EVALUE, "no parameter \"wte.nothing\"");
    tn_optim *opt = tn_sgd(&n, tn_sgd_defaults());
    assert_int_equal(tn__module_set_absent(&n.base, "wte.weight"), TN_ESTATE);
    assert_error(TN_ESTATE, "is held by an optimiser");
    tn_optim_free(opt);
    tn_module_set_part(&n, "wte.weight", tn_zeros(TN_DIMS(5), TN_F32), middle, &others);
    assert_int_equal(tn__module_set_absent(&n.base, "wte.weight"), TN_ESTATE);
    assert_error(TN_ESTATE, "a part of wte.weight is here");
    tn_module_finish(&n);
}
