/* Sharding: attaching, refusals, what is gathered when, and the end. Ranks are threads. (For the
 * bits of a training run see test_training.c.) */

#include "autograd/hooks.h"
#include "autograd/leaf.h"
#include "core/allocator.h"
#include "fsdp_net.h"

/* ---- Gradients --------------------------------------------------------------------------------
 */

/* Zeroing also drops gradients that have not been reduced yet. */
static void forgets_gradients(tn_group *g, void *user) {
    tn_fsdp_options o = TN_WITH(tn_fsdp, .stage = *(const int *)user);
    net m, want;
    net_init(&m, 1);
    net_init(&want, 1);
    tn_module_train(&m, false);
    tn_module_train(&want, false);
    tn_fsdp(&m, g, NULL, o);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (int i = 0; i < 2; i++) {
        {
            TN_NO_SYNC(&m);
            net_backward(&m, 7);
        }
        if (i == 0) {
            tn_optim_zero_grad(opt);
        } else {
            tn_module_zero_grad(&m);
        }
        net_backward(&m, 3);
        tn_module_zero_grad(&want);
        net_backward(&want, 3);
        double is = tn_optim_clip(opt, 1e9), norm = tn_clip_grad_norm(&want, 1e9);
        CHECK(norm > 0 && is > norm * (1 - 1e-6) && is < norm * (1 + 1e-6));
        tn_optim_zero_grad(opt);
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_module_finish(&want);
}

TEST(test_gradients_that_are_forgotten) {
    for (int stage = 1; stage <= 3; stage++) {
        run_ok(2, forgets_gradients, &stage);
    }
}

/* ---- What each rank has ---------------------------------------------------------------------- */

static int64_t elements_of(tn_group *g, const char *units, int64_t *unit_count) {
    net m;
    net_init(&m, 1);
    const tn_fsdp_state *s = tn_fsdp(&m, g, NULL, TN_WITH(tn_fsdp, .units = units));
    CHECK(s != NULL);
    tn_fsdp_stats stats = tn_fsdp_statistics(s);
    *unit_count = stats.units;
    tn_module_finish(&m);
    return stats.parts / 4;
}

/* One weight of 66 elements, four of 36 and four biases, each padded to a multiple of 16
 * elements. */
static void shares_out(tn_group *g, void *user) {
    int64_t units;
    CHECK(elements_of(g, NULL, &units) == 5 * 16 + 2 * (2 * 48 + 2 * 16) && units == 3);
    CHECK(elements_of(g, "h.*.inner h.*", &units) == 5 * 16 + 4 * (48 + 16) && units == 5);
    CHECK(elements_of(g, "  wte   head ", &units) == 5 * 16 + 4 * (48 + 16) && units == 1);
    CHECK(elements_of(g, "*.*.inner h.1 *", &units) == 5 * 16 + 4 * (48 + 16) && units == 4);
}

/* A transparent child has its parent's path, but only the parent is a unit. */
RANKS_TEST(test_transparent_children, 2) {
    net m;
    layer part;
    net_init(&m, 4);
    tn_module_init(&part, "part", layer_forward);
    tn_linear_init(&part.out, WIDTH, WIDTH, tn_linear_defaults());
    tn_module_add(&part, "more", &part.out);
    tn_module_add(&m.h[0], "", &part);
    tn_fsdp_state *s = tn_fsdp(&m, world, NULL, TN_WITH(tn_fsdp, .units = "h.*"));
    CHECK(s && tn_fsdp_statistics(s).units == 3);
    tn_module_finish(&m);
}

TEST(test_units_and_their_parameters) {
    shares_out(NULL, NULL);
}

/* Frozen parameters have parts, but no memory for gradients. */
TEST(test_frozen_parameters) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_module_requires_grad(&m.wte, false);
    tn_module_requires_grad(&m.h[0].out, false);
    int64_t before = tn_memory().allocated;
    tn_fsdp_stats stats = tn_fsdp_statistics(tn_fsdp(&m, NULL, NULL, tn_fsdp_defaults()));
    int64_t whole = 4 * (66 + 4 * 42), parts = 4 * (5 * 16 + 4 * 64), trainable = 4 * 3 * 64;
    assert_int_equal(stats.parts, parts);
    assert_int_equal(stats.buffers, 2 * 4 * 128);
    assert_int_equal(tn_memory().allocated - before, parts + trainable + stats.buffers - whole);
    tn_module_finish(&m);
}

/* The layout of a parameter's parts, whose lengths add up to the whole. */
static bool check_part(const tn_entry *entry, void *user) {
    const tn_group *g = user;
    const tn_layout *l = &entry->layout;
    CHECK(entry->parts && entry->parts->counts && l->dim == -1);
    CHECK(tn_dims_equal(l->whole, tn_shape(*entry->field)));
    CHECK(tn_count(entry->stored) == l->length && tn_storage_is_empty(*entry->field));
    int64_t length = l->length, count = tn_count(*entry->field), start = l->start;
    double sums[2] = {(double)length, (double)(length ? start : 0)};
    CHECK(entry->parts->sum(entry->parts, sums, 2) == TN_OK);
    CHECK(sums[0] == (double)count && l->start + length <= count);
    CHECK(tn_group_size(g) > 1 || sums[1] == 0);
    return true;
}

static void registers_parts(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    CHECK(tn_fsdp(&m, g, NULL, tn_fsdp_defaults()) != NULL);
    tn_module_each(&m, (tn_walk){.with_shared = true}, check_part, g);
    tn_module_finish(&m);
}

TEST(test_parts_are_registered) {
    for (int ranks = 1; ranks <= MOST; ranks++) {
        run_ok(ranks, registers_parts, NULL);
    }
}

/* ---- Without elements ------------------------------------------------------------------------ */

/* Built without elements, each rank makes only its parts, with rank 0's values. */
static void makes_parts(tn_group *g, void *user) {
    const run *r = user;
    TN_SCOPE;
    net m, want;
    net_init(&want, 1);
    {
        TN_DEFER_INIT;
        net_init(&m, 1 + (uint64_t)tn_group_rank(g));
        tn_module_buffer(&m, "mean", &m.mean, tn_full(TN_DIMS(3), 7, TN_F32));
    }
    if (r->bf16) { tn_module_set_precision(&m, tn_precision_defaults()); }
    attach_as(&m, g, r);
    net_backward(&m, 0);
    CHECK(tn_item(tn_sum_all(m.mean)) == 21);
    numbers a = numbers_of(&m), b = numbers_of(&want);
    CHECK(same_numbers(&a, &b));
    CHECK(tn_module_materialize(&m) == TN_OK); /* nothing is left to make */
    tn_module_finish(&want);
    tn_module_finish(&m);
}

TEST(test_parts_are_made_alone) {
    for (int i = 0; i < MOST * 4; i++) {
        run r = {.how = i & 1 ? NAIVE : FSDP, .options = tn_fsdp_defaults(), .bf16 = i & 2};
        run_ok(i / 4 + 1, makes_parts, &r);
    }
}

/* Four ranks, which are threads, together peak below 2.75 times the model: parts and their
 * gradients are twice the model; the rest is buffers for a few of many units, and one unit. */
RANKS_TEST(test_no_rank_has_it_whole, 4) {
    static int64_t before; /* rank 0 measures while the others wait */
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = 16, .context = 16, .width = 16, .layers = 32, .heads = 2);
    tn_gpt gpt;
    tn_barrier(world);
    if (tn_group_rank(world) == 0) {
        before = tn_memory().allocated;
        tn_memory_reset_peak();
    }
    tn_barrier(world);
    {
        TN_DEFER_INIT;
        tn_gpt_init(&gpt, o);
        CHECK(tn_fsdp(&gpt, world, NULL, tn_fsdp_defaults()) != NULL);
    }
    tn_barrier(world);
    if (tn_group_rank(world) == 0) {
        double whole = 4.0 * (double)tn_module_count(&gpt);
        double most = (double)(tn_memory().peak - before) / whole;
        CHECK(most > 2 && most < 2.75);
    }
    tn_barrier(world);
    TN_SCOPE;
    tn_backward(tn_lm_loss(&gpt, tn_zeros(TN_DIMS(1, 4), TN_I64), tn_zeros(TN_DIMS(1, 4), TN_I64)));
    tn_module_finish(&gpt);
}

/* ---- Gathered parameters --------------------------------------------------------------------- */

static void looks_at_whole(tn_group *g, void *user) {
    const run *r = user;
    TN_SCOPE;
    net m, want;
    net_init(&want, 1);
    net_init(&m, 1 + (uint64_t)tn_group_rank(g));
    if (r->bf16) { tn_module_set_precision(&m, tn_precision_defaults()); }
    tn_fsdp_state *s = tn_fsdp(&m, g, NULL, r->options);
    CHECK(tn_fsdp_statistics(s).whole == 0);
    int64_t all = 0;
    {
        TN_WHOLE(&m);
        TN_WHOLE(&m.h[0]);
        CHECK(tn_equal(m.wte.weight, want.wte.weight));
        CHECK(tn_equal(m.h[1].out.bias, want.h[1].out.bias));
        all = tn_fsdp_statistics(s).whole;
        CHECK(all >= (r->bf16 ? 6 : 4) * (66 + 4 * 42));
        net_backward(&m, tn_group_rank(g));
        CHECK(tn_fsdp_statistics(s).whole == all);
        tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
        tn_optim_step(opt);
        net_backward(&m, tn_group_rank(g));
        tn_optim_free(opt);
        if (!r->bf16) { /* a forward has gathered the new ones */
            CHECK(!tn_equal(m.h[0].out.weight, want.h[0].out.weight));
        }
    }
    if (r->options.stage == 3) {
        CHECK(tn_fsdp_statistics(s).whole == 0);
        CHECK(tn_is_inert(tn_neg(m.wte.weight)) && failed_with(TN_ESTATE, ""));
    }
    CHECK(tn_fsdp_statistics(s).most_whole == all);
    tn_module_finish(&want);
    tn_module_finish(&m);
}

TEST(test_a_whole_module) {
    for (int i = 0; i < 6; i++) {
        run r = {.options = tn_fsdp_defaults(), .bf16 = i & 1};
        r.options.stage = i / 2 + 1;
        run_ok(2, looks_at_whole, &r);
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */

static tn_tensor *no_hook(tn_tensor *grad, void *user) {
    return grad;
}

/* Tries to attach on one rank, and finishes m. */
static void assert_refused(net *m, tn_fsdp_options o, tn_status status, const char *part) {
    assert_none(tn_fsdp(m, NULL, NULL, o), status, part);
    tn_module_finish(m);
}

TEST(test_options_that_are_refused) {
    net m;
    net_init(&m, 1);
    tn_fsdp_options o = TN_WITH(tn_fsdp, .units = "h.* g.*");
    assert_refused(&m, o, TN_EVALUE,
                   "no module of the net matches \"g.*\" (paths separated by spaces");
    net_init(&m, 1);
    o = tn_fsdp_defaults();
    o.ignore = "wte.weight h.0";
    assert_refused(&m, o, TN_EVALUE, "no parameter of the net matches \"h.0\"");
    net_init(&m, 1);
    o = tn_fsdp_defaults();
    o.stage = 4;
    assert_refused(&m, o, TN_EVALUE, "stage is 4");
    net_init(&m, 1);
    o = tn_fsdp_defaults();
    o.prefetch = -1;
    assert_refused(&m, o, TN_EVALUE, "prefetch is -1");
}

TEST(test_states_that_are_refused) {
    tn_fsdp_options o = tn_fsdp_defaults();
    net m;
    net_init(&m, 1);
    tn_on_grad(m.h[0].out.bias, no_hook, NULL);
    assert_refused(&m, o, TN_ESTATE, "h.0.out.bias has hooks");

    net_init(&m, 1);
    tn_set_grad_buffer(m.wte.weight, tn_zeros(TN_DIMS(VOCAB, WIDTH), TN_F32));
    assert_refused(&m, o, TN_ESTATE, "wte.weight has a gradient buffer");

    net_init(&m, 1);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    assert_refused(&m, o, TN_ESTATE, "is held by an optimiser");
    tn_optim_free(opt);

    net_init(&m, 1);
    assert_non_null(tn_ddp(&m, NULL, tn_ddp_defaults()));
    assert_refused(&m, o, TN_ESTATE, "is under data parallelism already");

    net_init(&m, 1);
    assert_int_equal(tn_fsdp_naive(&m.h[0], NULL), TN_OK);
    assert_refused(&m, o, TN_ESTATE, "is under sharding already");

    net_init(&m, 1);
    assert_non_null(tn_fsdp(&m, NULL, NULL, o));
    assert_fails(tn_module_set_precision(&m, tn_precision_defaults()), TN_ESTATE, "");
    assert_int_equal(tn_module_to(&m, tn_device_of(m.wte.weight)), TN_OK); /* same device */
    tn_module_finish(&m);
}

typedef struct difference {
    const char *what;
    char says[1024]; /* rank 1's error message */
} difference;

static void rank_differs(tn_group *g, void *user) {
    difference *d = user;
    bool odd = tn_group_rank(g) == 1;
    net m;
    net_init(&m, 1);
    if (odd && !strcmp(d->what, "policy")) { tn_module_set_precision(&m, tn_precision_defaults()); }
    tn_module_requires_grad(&m.h[1], !(odd && !strcmp(d->what, "frozen")));
    CHECK(tn_fsdp(&m, g, NULL,
                  TN_WITH(tn_fsdp, .units = odd && !strcmp(d->what, "units") ? "h.0" : "h.*",
                          .stage = odd && !strcmp(d->what, "stage") ? 2 : 3)) == NULL);
    CHECK(tn_error() == TN_EMISMATCH);
    if (odd) { snprintf(d->says, sizeof(d->says), "%s", tn_error_message()); }
    tn_error_clear();
    tn_module_finish(&m);
}

TEST(test_ranks_that_differ) {
    const char *const words[] = {"policy", "frozen", "units", "stage"};
    const char *const told[] = {
        "f32 [11, 6], but rank 1 has parameter wte.weight f32 [11, 6], computed in bf16",
        "but rank 1 has parameter h.1.", "rank 0 has units h.*, but rank 1 has units h.0",
        "stage 3, but rank 1 has options stage 2"};
    for (int i = 0; i < 4; i++) {
        difference d = {.what = words[i]};
        run_ok(2, rank_differs, &d);
        assert_contains(d.says, told[i]);
    }
}

/* ---- The end --------------------------------------------------------------------------------- */

typedef enum ending { AFTER_FORWARD, IN_BACKWARD, A_CHILD_FIRST, ENDINGS } ending;

static void finish_net(tn_module *m, void *user) {
    tn_module_finish(user);
}

static void ends_module(tn_group *g, void *user) {
    TN_SCOPE;
    ending how = *(const ending *)user;
    net m;
    net_init(&m, 1);
    CHECK(tn_fsdp(&m, g, NULL, tn_fsdp_defaults()) != NULL);
    net_backward(&m, 0);
    if (how == IN_BACKWARD) {
        tn_module_hook(&m.h[0], (tn_module_hooks){.backward_before = finish_net, .user = &m});
    }
    tn_tensor *loss = net_loss(&m, 0);
    if (how == A_CHILD_FIRST) {
        tn_module_finish(&m.h[1]);
        tn_module_finish(&m);
    } else if (how == AFTER_FORWARD) {
        tn_module_finish(&m);
    }
    CHECK(tn_backward(loss) != TN_OK);
    tn_error_clear();
}

TEST(test_a_module_that_is_finished) {
    for (ending how = AFTER_FORWARD; how < ENDINGS; how++) {
        run_ok(1, ends_module, &how);
        run_ok(2, ends_module, &how);
    }
}

/* Each allocation fails once: an error, and the module can still be finished. */
TEST(test_memory_that_runs_out) {
    bool failed = true;
    int64_t n = 0;
    for (; failed; n++) {
        TN_SCOPE;
        net m;
        net_init(&m, 1);
        tn_fsdp_options o = TN_WITH(tn_fsdp, .units = "h.* h.*.inner");
        tn__alloc_fail_at(n);
        bool attached = tn_fsdp(&m, NULL, NULL, o) != NULL;
        assert_true(attached == (tn_error() == TN_OK));
        for (int i = 0; attached && i < 2; i++) {
            net_backward(&m, i);
        }
        failed = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_true(tn_error() == (failed ? TN_ENOMEM : TN_OK));
        tn_error_clear();
        if (!attached) { /* as before, or unusable */
            tn_call(&m, net_tokens(0));
            assert_true(tn_error() == TN_OK || strstr(tn_error_message(), "not complete"));
            tn_error_clear();
        }
        tn_optim_free(tn_adamw(&m, tn_adamw_defaults())); /* finds nothing that was freed */
        tn_module_finish(&m);
    }
    assert_true(n > 100);
}

/* Two modules, one group, one backward through both. */
RANKS_TEST(test_two_modules_share_a_group, 1, 2) {
    TN_SCOPE;
    net a, b, alone[2];
    net_init(&a, 1);
    net_init(&b, 2);
    net_init(&alone[0], 1);
    net_init(&alone[1], 2);
    tn_fsdp_options o = TN_WITH(tn_fsdp, .sum = true);
    CHECK(tn_fsdp(&a, world, NULL, o) != NULL && tn_fsdp(&b, world, NULL, o) != NULL);
    tn_module_train(&a, false);
    tn_module_train(&b, false);
    tn_module_train(&alone[0], false);
    tn_module_train(&alone[1], false);
    for (int step = 0; step < 2; step++) {
        TN_SCOPE;
        tn_backward(tn_mul(net_loss(&a, 1), net_loss(&b, 2)));
        tn_backward(net_loss(&b, 3)); /* not through a */
        tn_backward(tn_mul(net_loss(&alone[0], 1), net_loss(&alone[1], 2)));
        tn_backward(net_loss(&alone[1], 3));
    }
    double ranks = tn_group_size(world);
    for (int i = 0; i < 2; i++) {
        double is = tn_clip_grad_norm(i ? &b : &a, 1e9), want = tn_clip_grad_norm(&alone[i], 1e9);
        CHECK(want > 0 && is > want * ranks * (1 - 1e-6) && is < want * ranks * (1 + 1e-6));
    }
    tn_module_finish(&a);
    tn_module_finish(&b);
    tn_module_finish(&alone[0]);
    tn_module_finish(&alone[1]);
}

/* ---- Where gradients are made ---------------------------------------------------------------- */

static _Thread_local int made, made_in_place;

static tn_tensor *look_where(tn_tensor *grad, void *user) {
    const tn_leaf *leaf = ((tn_tensor *)user)->leaf;
    made++;
    made_in_place += leaf->grad && tn_data(leaf->grad) == tn_data(grad);
    return NULL;
}

static bool watch_leaf(const tn_entry *entry, void *user) {
    return tn__on_grad_observe(*entry->field, look_where, *entry->field) != 0;
}

/* With both strategies a kernel writes gradients where they are sent from, without a copy. */
static void makes_in_place(tn_group *g, void *user) {
    net m;
    net_init(&m, 3);
    if (user) {
        tn_ddp(&m, g, tn_ddp_defaults());
    } else {
        tn_fsdp(&m, g, NULL, tn_fsdp_defaults());
    }
    tn_module_each(&m, (tn_walk){0}, watch_leaf, NULL);
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        made = made_in_place = 0;
        tn_backward(net_loss(&m, i));
        CHECK(made == 9 && made_in_place == made);
        tn_module_zero_grad(&m);
    }
    tn_module_finish(&m);
}

TEST(test_gradients_are_made_in_their_place) {
    run_ok(2, makes_in_place, NULL);
    run_ok(2, makes_in_place, "ddp");
}
