/* Data parallelism: attaching, refusals, and the end. Ranks are threads. */

#include "distributed/group/group.h"
#include "ddp_net.h"
#include "tests/support/temp.h"
#include "tests/support/no_memory.h"

/* ---- Attaching ------------------------------------------------------------------------------- */

RANKS_TEST(test_all_take_rank_0s_state, 3) {
    net m, want;
    net_init(&m, 5 + (uint64_t)tn_group_rank(world));
    net_init(&want, 5);
    CHECK(tn_ddp(&m, world, tn_ddp_defaults()) != NULL);
    numbers a = params_of(&m), b = params_of(&want);
    CHECK(same_numbers(&a, &b));
    CHECK(tn_equal(m.mean, want.mean));
    CHECK(tn_equal(m.flags, want.flags));
    tn_module_finish(&m);
    tn_module_finish(&want);
}

typedef struct difference {
    const char *what;
    bool naive;
    char says[1024]; /* rank 2's error message */
} difference;

static void rank_differs(tn_group *g, void *user) {
    difference *d = user;
    bool odd = tn_group_rank(g) == 1;
    tn_sequential m;
    tn_linear a, b;
    tn_sequential_init(&m);
    bool wide = odd && !strcmp(d->what, "shape"), narrow = odd && !strcmp(d->what, "dtype");
    tn_linear_options o = TN_WITH(tn_linear, .bias = !(odd && !strcmp(d->what, "missing")),
                                  .dtype = narrow ? TN_BF16 : TN_F32);
    tn_linear_init(&a, 4, 5, tn_linear_defaults());
    tn_linear_init(&b, 5, wide ? 7 : 6, o);
    tn_sequential_add(&m, &a);
    tn_sequential_add(&m, &b);
    tn_module_requires_grad(&a, !(odd && !strcmp(d->what, "frozen")));
    tn_ddp_options options = TN_WITH(tn_ddp, .sum = odd && !strcmp(d->what, "options"));
    if (d->naive && odd) {
        CHECK(tn_ddp_naive(&m, g) == TN_EMISMATCH);
    } else {
        CHECK(tn_ddp(&m, g, options) == NULL);
    }
    CHECK(tn_error() == TN_EMISMATCH);
    CHECK(strstr(tn_error_message(), "rank 0 has") && strstr(tn_error_message(), "rank 1 has"));
    if (tn_group_rank(g) == 2) { snprintf(d->says, sizeof(d->says), "%s", tn_error_message()); }
    tn_error_clear();
    CHECK(tn_barrier(g) == TN_OK); /* all ranks know, so the group still works */
    tn_module_finish(&m);
}

TEST(test_a_difference_is_named) {
    static const struct {
        difference d;
        const char *says[2];
    } cases[] = {
        {{.what = "shape"},
         {"rank 0 has parameter 1.weight f32 [6, 5], but", "1.weight f32 [7, 5]"}},
        {{.what = "dtype"}, {"parameter 1.weight f32 [6, 5]", "parameter 1.weight bf16 [6, 5]"}},
        {{.what = "missing"}, {"rank 0 has parameter 1.bias f32 [6]", "rank 1 has nothing more"}},
        {{.what = "frozen"}, {"0.weight f32 [5, 4],", "0.weight f32 [5, 4], frozen"}},
        {{.what = "options"}, {"rank 0 has sum 0, but", "rank 1 has sum 1"}},
        {{.what = "", .naive = true}, {"options bucket_bytes", "options of ddp_naive"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        difference d = cases[i].d;
        run_ok(3, rank_differs, &d);
        assert_contains(d.says, cases[i].says[0]);
        assert_contains(d.says, cases[i].says[1]);
    }
}

/* Rank 1 cannot attach: an error is pending there, or its arguments are wrong. */
static void cannot_attach(tn_group *g, void *user) {
    const char *why = user;
    bool mine = tn_group_rank(g) == 1, naive = strstr(why, "naive");
    tn_ddp_options o = tn_ddp_defaults();
    net m;
    net_init(&m, 1);
    if (mine && strstr(why, "pending")) {
        tn_raise(TN_EVALUE, "of old");
    } else if (mine && strstr(why, "options")) {
        o.bucket_bytes = 0;
    }
    void *module = mine && strstr(why, "module") ? NULL : &m;
    CHECK(naive ? tn_ddp_naive(module, g) != TN_OK : !tn_ddp(module, g, o));
    bool before = strstr(why, "pending"); /* then rank 1 does not take part */
    CHECK(tn_error() == (mine || !before ? TN_EVALUE : TN_EPEER));
    CHECK(mine || strstr(tn_error_message(), before ? "rank 1 gave up" : ": rank 1: "));
    stay_until_told(g);
    tn_module_finish(&m);
}

TEST(test_who_cannot_attach_tells_the_others) {
    static const char *const why[] = {"pending", "options", "module", "naive, pending",
                                      "naive, module"};
    for (int i = 0; i < 5; i++) {
        char text[32];
        snprintf(text, sizeof(text), "%s", why[i]);
        run_failing(3, cannot_attach, text, TN_EVALUE);
    }
}

static void assert_refused(void *m, tn_group *g, tn_ddp_options o, tn_status status,
                           const char *says) {
    assert_null(tn_ddp(m, g, o));
    assert_int_equal(tn_error(), status);
    assert_contains(tn_error_message(), says);
    tn_error_clear();
}

TEST(test_what_is_refused) {
    TN_SCOPE;
    tn_ddp_options o = tn_ddp_defaults(), zero = o;
    zero.bucket_bytes = 0;
    net m;
    net_init(&m, 1);
    assert_refused(NULL, NULL, o, TN_EVALUE, "the module is NULL");
    assert_refused(&m, NULL, zero, TN_EVALUE, "at least 1");
    assert_non_null(tn_ddp(&m.in, NULL, o));
    assert_refused(&m, NULL, o, TN_ESTATE, "linear in is under data parallelism already");
    assert_refused(&m.in, NULL, o, TN_ESTATE, "already");
    assert_fails(tn_ddp_naive(&m, NULL), TN_ESTATE, "");
    tn_module_finish(&m);

    net_init(&m, 1);
    assert_int_equal(tn_ddp_naive(&m, NULL), TN_OK);
    assert_refused(&m.in, NULL, o, TN_ESTATE, "net is under data parallelism already");
    tn_module_finish(&m);
    assert_refused(&m, NULL, o, TN_ESTATE, "finished");

    net_init(&m, 1);
    tn_layout tenth = {TN_DIMS(100, NET_IN), 0, 1, 0, 10, 0, 10 * NET_IN};
    assert_int_equal(tn_module_set_part(&m, "in.weight", NULL, tenth, NULL), TN_OK);
    assert_non_null(tn_ddp(&m, NULL, o)); /* a block counts as whole */
    tn_module_finish(&m);

    net_init(&m, 1);
    tn_layout row = {TN_DIMS(NET_HIDDEN, NET_IN), -1, 1, 0, 1, 0, NET_IN};
    tn_tensor *part = tn_zeros(TN_DIMS(NET_IN), TN_F32);
    assert_int_equal(tn_module_set_part(&m, "in.weight", part, row, NULL), TN_OK);
    assert_refused(&m, NULL, o, TN_ESTATE, "in.weight is sharded: here is [6] of [10, 6]");
    tn_module_finish(&m);

    net_init(&m, 1);
    tn_optim *opt = tn_sgd(&m.in, tn_sgd_defaults());
    assert_refused(&m, NULL, o, TN_ESTATE, "the parameter in.weight is held by an optimiser");
    assert_fails(tn_ddp_naive(&m, NULL), TN_ESTATE, "");
    tn_optim_free(opt);
    assert_non_null(tn_ddp(&m, NULL, o));
    opt = tn_sgd(&m, tn_sgd_defaults());
    tn_optim_free(opt);
    tn_module_finish(&m);

    {
        TN_DEFER_INIT;
        net_init(&m, 1);
    }
    assert_refused(&m, NULL, o, TN_ESTATE, "out.weight has no elements yet");
    assert_fails(tn_ddp_naive(&m, NULL), TN_ESTATE, "");
    assert_int_equal(tn_module_materialize(&m), TN_OK);
    assert_non_null(tn_ddp(&m, NULL, o));
    tn_module_finish(&m);

    assert_fails(tn_ddp_join(NULL, NULL), TN_EVALUE, "");
    assert_int_equal(tn_ddp_statistics(NULL).buckets, 0);
}

/* ---- The end --------------------------------------------------------------------------------- */

static void keeps_its_module(tn_group *g, void *user) {
    net *m = (net *)user + tn_group_rank(g);
    net_init(m, 1);
    tn_ddp(m, g, tn_ddp_defaults());
    net_backward(m, 0);
    CHECK(tn_error() == TN_OK);
}

/* The group is freed before the modules. Gradients live as long as they are held. */
TEST(test_the_group_may_go_first) {
    TN_SCOPE;
    net m[2];
    run_ok(2, keeps_its_module, m);
    tn_tensor *held = tn_keep(tn_grad_of(m[0].in.weight)), *leaf = tn_keep(m[1].in.weight);
    tn_module_finish(&m[0]);
    tn_module_finish(&m[1]);
    assert_true(tn_at(held, TN_DIMS(0, 0)) == tn_at(held, TN_DIMS(0, 0)));
    tn_backward(tn_sum_all(leaf)); /* the leaf's hooks went with the module */
    assert_int_equal(tn_error(), TN_OK);
    tn_release(held);
    tn_release(leaf);
}

static void finish_module(tn_tensor *leaf, void *user) {
    tn_module_finish(user);
}

TEST(test_a_module_may_end_in_its_backward) {
    for (int naive = 0; naive < 2; naive++) {
        TN_SCOPE;
        net m;
        net_init(&m, 1);
        if (naive) {
            tn_ddp_naive(&m, NULL);
        } else {
            tn_ddp(&m, NULL, small_buckets());
        }
        tn_on_accumulated(m.out.bias, finish_module, &m);
        net_backward(&m, 0);
        tn_error_clear();
        tn_module_finish(&m);
    }
}

static void attach_and_step(bool naive) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_ddp_options o = small_buckets();
    o.join = o.find_unused = true;
    tn_module_requires_grad(&m.extra, false);
    if (naive ? tn_ddp_naive(&m, NULL) == TN_OK : tn_ddp(&m, NULL, o) != NULL) {
        net_backward(&m, 0);
        tn_module_requires_grad(&m.extra, true); /* buckets are rebuilt */
        net_backward(&m, 1);
    }
    tn_module_finish(&m);
}

static void step_with_buckets(void) {
    attach_and_step(false);
}

static void step_naively(void) {
    attach_and_step(true);
}

TEST(test_out_of_memory_anywhere) {
    assert_true(every_allocation(step_with_buckets) > 20);
    assert_true(every_allocation(step_naively) > 20);
}

TEST(test_the_group_was_freed) {
    net m;
    net_init(&m, 5);
    tn_group *g = tn__group_create("mine", NULL, NULL, 0, 1, NULL, NULL);
    assert_non_null(tn_ddp(&m, g, tn_ddp_defaults()));
    tn_group_free(g);
    net_backward(&m, 1);
    assert_error(TN_ESTATE, "the group was freed before");
    tn_module_finish(&m);
}
