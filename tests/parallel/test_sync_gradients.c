/* tn_sync_gradients: all backwards of a step are local, and what they accumulate is reduced
 * afterwards. That models train so is in test_training.c. Ranks are threads. */
#include "fsdp_net.h"
#include "nn/module.h"

enum { STEPS = 3 };

typedef struct steps {
    run r;
    bool sync; /* synchronise a step's last backward; false: call tn_sync_gradients */
} steps;

/* Makes the net, attaches it as the run says, and makes its optimiser. */
static tn_optim *attach_net(net *m, tn_group *g, const run *r) {
    net_init(m, 9);
    attach_as(m, g, r);
    return tn_adamw(m, tn_adamw_defaults());
}

/* With find_unused: rank 0's first backward of a step leaves a layer out. */
static void train_steps(tn_group *g, void *user) {
    const steps *s = user;
    int rank = tn_group_rank(g);
    net m;
    tn_optim *opt = attach_net(&m, g, &s->r);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2; i++) {
            TN_NO_SYNC(s->sync && i == 1 ? NULL : (void *)&m);
            m.h[0].skips = rank == 0 && i == 0;
            net_backward(&m, (2 * step + i) * MOST + rank);
        }
        if (!s->sync) { CHECK(tn_sync_gradients(&m) == TN_OK); }
        tn_optim_clip(opt, 0.5);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    s->r.ends[rank] = numbers_of(&m);
    CHECK(tn_error() == TN_OK);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

static numbers end_of(int ranks, steps s) {
    static numbers ends[MOST];
    s.r.ends = ends;
    run_ok(ranks, train_steps, &s);
    for (int i = 1; i < ranks; i++) {
        assert_true(same_numbers(&ends[0], &ends[i]));
    }
    return ends[0];
}

TEST(where_some_are_unused) {
    steps s = {.r = {.how = FSDP, .options = tn_fsdp_defaults()}, .sync = true};
    s.r.options.find_unused = true;
    numbers want = end_of(2, s);
    s.sync = false;
    numbers is = end_of(2, s);
    assert_true(same_numbers(&is, &want));
}

/* A gradient that has been reduced gets a contribution from only one rank. */
static void adds_on_one(tn_group *g, void *user) {
    const steps *s = user;
    int rank = tn_group_rank(g);
    net m;
    tn_optim *opt = attach_net(&m, g, &s->r);
    net_backward(&m, rank);
    {
        TN_NO_SYNC(s->sync ? NULL : (void *)&m);
        m.h[0].skips = rank == 0;
        net_backward(&m, MOST + rank);
    }
    if (!s->sync) { CHECK(tn_sync_gradients(&m) == TN_OK); }
    tn_optim_step(opt);
    s->r.ends[rank] = numbers_of(&m);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(more_from_one_rank) {
    for (int how = DDP; how <= FSDP; how += FSDP - DDP) {
        numbers ends[2], first;
        steps s = {.r = {.how = how, .options = tn_fsdp_defaults(), .ends = ends}, .sync = true};
        s.r.options.find_unused = true;
        run_ok(2, adds_on_one, &s);
        first = ends[0];
        s.sync = false;
        run_ok(2, adds_on_one, &s);
        assert_true(same_numbers(&ends[0], &first) && same_numbers(&ends[1], &first));
    }
}

/* ---- Gradients that are reduced already ------------------------------------------------------ */

static void each_gradient(tn_group *g, tn_ddp_options o, double factor) {
    net m;
    net_init(&m, 1);
    tn_module_train(&m, false);
    CHECK(tn_ddp(&m, g, o));
    {
        TN_NO_SYNC(&m);
        net_backward(&m, tn_group_rank(g));
    }
    CHECK(tn_sync_gradients(&m) == TN_OK);
    TN_SCOPE;
    tn_tensor *grad = tn_copy(tn_grad_of(m.wte.weight));
    for (int i = 0; i < 2; i++) { /* nothing is left to reduce */
        CHECK(tn_sync_gradients(&m) == TN_OK);
        CHECK(tn_equal(tn_grad_of(m.wte.weight), grad));
    }
    net sum;
    net_init(&sum, 1);
    tn_module_train(&sum, false);
    for (int r = 0; r < tn_group_size(g); r++) {
        net_backward(&sum, r);
    }
    tn_tensor *want = tn_mul_scalar(tn_grad_of(sum.wte.weight), factor);
    CHECK(tn_item(tn_max(tn_abs(tn_sub(grad, want)), TN_DIMS(), false)) < 1e-6);
    tn_module_finish(&m);
    tn_module_finish(&sum);
}

RANKS_TEST(once_and_not_again, 3) {
    tn_ddp_options o = tn_ddp_defaults();
    each_gradient(world, o, 1.0 / tn_group_size(world));
    o.sum = true;
    each_gradient(world, o, 1.0);
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

RANKS_TEST(the_round_of_a_strategy, 3) {
    net m;
    net_init(&m, 1);
    tn__round none = tn__strategy_round(&m.base);
    CHECK(none.ranks == 1 && none.rank == 0);
    CHECK(tn_fsdp(&m, world, NULL, tn_fsdp_defaults()));
    tn__round whole = tn__strategy_round(&m.base), part = tn__strategy_round(&m.h[1].base);
    CHECK(whole.ranks == tn_group_size(world) && whole.rank == tn_group_rank(world));
    CHECK(part.ranks == whole.ranks && part.rank == whole.rank);
    tn_module_finish(&m);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static tn_status during;

static tn_tensor *sync_inside(tn_tensor *grad, void *m) {
    during = tn_sync_gradients(m);
    return NULL;
}

TEST(inside_and_in_parts) {
    net m;
    net_init(&m, 1);
    assert_int_equal(tn_sync_gradients(&m), TN_OK); /* nothing is attached: a no-op */
    assert_non_null(tn_ddp(&m, NULL, tn_ddp_defaults()));
    assert_fails(tn_sync_gradients(&m.h[0]), TN_ESTATE,
                 "block h.0 is inside a net that is under data parallelism");
    tn_on_grad(m.h[0].out.weight, sync_inside, &m);
    net_backward(&m, 1);
    assert_int_equal(during, TN_ESTATE);
    assert_error(TN_ESTATE, "inside a backward");
    tn_module_finish(&m);
}

static void lacks_one(tn_group *g, void *user) {
    const run *r = user;
    net m;
    net_init(&m, 1);
    attach_as(&m, g, r);
    {
        TN_NO_SYNC(&m);
        m.h[1].skips = tn_group_rank(g) == 1;
        net_backward(&m, 1);
    }
    CHECK(tn_sync_gradients(&m) != TN_OK);
    stay_until_told(g);
    tn_module_finish(&m);
}

/* A gradient that one rank lacks is an error on all ranks, which names it. */
TEST(what_is_missing) {
    run r = {.how = DDP, .options = tn_fsdp_defaults()};
    for (int i = 0; i < 2; i++) {
        const char *text = run_failing(2, lacks_one, &r, TN_ESTATE);
        if (!strstr(text, "h.1.inner.in.weight")) { fail_msg("%s", text); }
        r.how = FSDP;
    }
}
