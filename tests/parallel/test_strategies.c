/* What strategies share: which one is attached to a module, what prevents attaching, and scopes. */

#include "ddp_net.h"
#include "distributed/parallel/base.h"
#include "distributed/parallel/flat.h"
#include "nn/module.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- Which strategy is attached -------------------------------------------------------------- */

static void do_nothing(tn_module *m, void *user) {}

static void attach_strategy(void *m, tn__parallel *p) {
    *p = (tn__parallel){.strategy.name = "counting"};
    assert_int_not_equal(tn_module_hook(m, (tn_module_hooks){.backward_before = do_nothing}), 0);
    ((tn_module *)m)->lists->strategy = &p->strategy;
}

TEST(a_strategy_is_known_by_the_registry) {
    net m;
    tn__parallel p;
    net_init(&m, 1);
    attach_strategy(&m.in, &p);
    assert_none(tn_ddp(&m, NULL, tn_ddp_defaults()), TN_ESTATE,
                "linear in is under counting already");
    assert_fails(tn_ddp_naive(&m.in, NULL), TN_ESTATE, "linear in is under counting already");
    assert_non_null(tn_ddp(&m.out, NULL, tn_ddp_defaults())); /* next to it */
    tn_module_finish(&m);

    net_init(&m, 1);
    attach_strategy(&m, &p);
    assert_none(tn_ddp(&m.in, NULL, tn_ddp_defaults()), TN_ESTATE, "net is under counting already");
    tn_module_finish(&m);
}

/* ---- Scopes ---------------------------------------------------------------------------------- */

TEST(a_scope_speaks_to_what_is_below) {
    net m;
    tn__parallel in, out;
    net_init(&m, 1);
    {
        TN_NO_SYNC(&m); /* nothing is attached */
        attach_strategy(&m.in, &in);
        attach_strategy(&m.out, &out);
        in.no_sync = out.no_sync = 1;
    }
    assert_true(in.no_sync == 0 && out.no_sync == 0);
    {
        TN_NO_SYNC(&m);
        assert_true(in.no_sync == 1 && out.no_sync == 1);
        {
            TN_NO_SYNC(&m.in);
            assert_true(in.no_sync == 2 && out.no_sync == 1);
        }
        assert_true(in.no_sync == 1 && out.no_sync == 1);
        tn_raise(TN_EVALUE, "an error ends no scope");
    }
    assert_error(TN_EVALUE, "an error");
    assert_true(in.no_sync == 0 && out.no_sync == 0);
    tn_module_finish(&m);
}

TEST(what_scopes_refuse) {
    net m;
    tn__parallel p;
    net_init(&m, 1);
    attach_strategy(&m, &p);
    {
        TN_NO_SYNC(&m.in);
        assert_error(TN_ESTATE, "linear in is inside a net that is under counting");
        assert_int_equal(p.no_sync, 0);
    }
    tn_module_finish(&m);
    assert_int_equal(p.no_sync, 0);
    assert_none(tn_no_sync_begin(&m), TN_ESTATE, "finished");

    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, NULL, tn_ddp_defaults());
    assert_none(tn_no_sync_begin(ddp), TN_EVALUE, "is not a module");
    tn_module_finish(&m);
}

TEST(a_scope_may_outlive_its_module) {
    net *m = malloc(sizeof(*m));
    net_init(m, 1);
    tn_ddp(m, NULL, tn_ddp_defaults());
    TN_NO_SYNC(m);
    tn_module_finish(m);
    free(m);
}

/* A strategy attached inside a scope sees only its end, which must not count. */
TEST(a_scope_may_be_older) {
    net m;
    net_init(&m, 1);
    void *scope = tn_no_sync_begin(&m);
    tn_ddp_state *ddp = tn_ddp(&m, NULL, tn_ddp_defaults());
    tn_no_sync_end(&scope);
    assert_null(scope);
    net_backward(&m, 0);
    assert_int_equal(tn_ddp_statistics(ddp).steps, 1);
    tn_module_finish(&m);
}

/* ---- What prevents attaching ----------------------------------------------------------------- */

typedef struct tied {
    tn_module base;
    tn_linear a, b;
} tied;

static tn_tensor *tied_forward(tn_module *self, tn_tensor *x) {
    tied *m = (tied *)self;
    return tn_call(&m->b, tn_call(&m->a, x));
}

static void tied_init(tied *m) {
    tn_linear_options o = TN_WITH(tn_linear, .bias = false);
    tn_module_init(m, "tied", tied_forward);
    tn_linear_init(&m->a, 4, 4, o);
    tn_linear_init(&m->b, 4, 4, o);
    tn_module_add(m, "a", &m->a);
    tn_module_add(m, "b", &m->b);
    tn_module_tie(m, "b.weight", "a.weight");
}

/* Under either name, whichever of the two modules the optimiser was made for. */
TEST(an_optimiser_holds_a_tied_parameter) {
    for (int i = 0; i < 2; i++) {
        tied m;
        tied_init(&m);
        tn_linear *stepped = i ? &m.b : &m.a, *other = i ? &m.a : &m.b;
        tn_optim *opt = tn_sgd(stepped, tn_sgd_defaults());
        assert_none(tn_ddp(stepped, NULL, tn_ddp_defaults()), TN_ESTATE,
                    "the parameter weight is held by an optimiser");
        assert_none(tn_ddp(other, NULL, tn_ddp_defaults()), TN_ESTATE,
                    "the parameter weight is held by an optimiser");
        assert_fails(tn_ddp_naive(&m, NULL), TN_ESTATE,
                     "the parameter a.weight is held by an optimiser");
        tn_optim_free(opt);
        assert_non_null(tn_ddp(&m, NULL, tn_ddp_defaults()));
        tn_module_finish(&m);
    }
}

/* An optimiser does not hold parameters that were frozen when it was made. */
TEST(an_optimiser_of_other_modules) {
    net m;
    net_init(&m, 1);
    tn_module_requires_grad(&m.in, false);
    tn_optim *opt = tn_sgd(&m, tn_sgd_defaults());
    assert_non_null(tn_ddp(&m.in, NULL, tn_ddp_defaults()));
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* A graph that will recompute the module does not prevent attaching: its gradients are reduced,
 * too. */
static void has_a_graph(tn_group *g, void *user) {
    TN_SCOPE;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_module_set_recompute(&m, true);
    tn_tensor *loss = net_loss(&m, rank);
    CHECK(user ? tn_ddp_naive(&m, g) == TN_OK : tn_ddp(&m, g, tn_ddp_defaults()) != NULL);
    CHECK(tn_backward(loss) == TN_OK);
    numbers a = grads_alone(1, true, 0), b = grads_alone(1, true, 1);
    numbers want = numbers_sum(&a, &b, 2), is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
}

TEST(a_graph_from_before) {
    run_ok(2, has_a_graph, NULL);
    run_ok(2, has_a_graph, "naive");
}

/* ---- A flat buffer --------------------------------------------------------------------------- */

/* Every element of every tensor is in exactly one part, in order; tensors and parts begin at cache
 * lines. */
TEST(a_flat_buffer_in_parts) {
    static const int64_t counts[] = {1, 16, 33, 0, 500, 7};
    enum { TENSORS = sizeof(counts) / sizeof(counts[0]) };
    int64_t line = tn__flat_line(TN_F32);
    assert_int_equal(line, 16);
    assert_int_equal(tn__flat_line(TN_BF16), 32);
    for (int ranks = 1; ranks <= 40; ranks++) {
        int64_t total = 0, offsets[TENSORS];
        for (int i = 0; i < TENSORS; i++) {
            offsets[i] = tn__flat_place(&total, counts[i], line);
            assert_int_equal(offsets[i] % line, 0);
        }
        int64_t each = tn__flat_each(total, ranks, line);
        assert_true(each % line == 0 && ranks * each >= total);
        assert_true(ranks * each < total + ranks * line);
        for (int i = 0; i < TENSORS; i++) {
            int64_t seen = 0;
            for (int r = 0; r < ranks; r++) {
                tn__flat_cut cut = tn__flat_cut_of(offsets[i], counts[i], each, r);
                assert_true(cut.length == 0 || cut.start == seen);
                assert_true(cut.length == 0 || r * each + cut.at == offsets[i] + cut.start);
                assert_true(cut.at + cut.length <= each);
                seen += cut.length;
            }
            assert_int_equal(seen, counts[i]);
        }
    }
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

/* A mesh's ranks have the same micro-batches as the world's. */
RANKS_TEST(a_round_over_two_groups, 6) {
    int rank = tn_group_rank(world);
    tn_group *rows[2], *columns[3];
    for (int i = 0; i < 2; i++) {
        rows[i] = tn_group_new(world, (int[]){3 * i, 3 * i + 1, 3 * i + 2}, 3);
    }
    for (int i = 0; i < 3; i++) {
        columns[i] = tn_group_new(world, (int[]){i, i + 3}, 2);
    }
    tn__round r = tn__round_of(columns[rank % 3], rows[rank / 3]), w = tn__round_of(NULL, world);
    CHECK(r.ranks == 6 && r.rank == rank && w.ranks == 6 && w.rank == rank);
    tn_seed(1);
    tn__round_begin(r);
    CHECK(tn_default_generator()->stream == (uint64_t)rank + 1);
    for (int i = 0; i < 3; i++) {
        tn_group_free(columns[i]);
    }
    tn_group_free(rows[0]);
    tn_group_free(rows[1]);
}

/* ---- A strategy over two groups -------------------------------------------------------------- */

static bool average_twice(const tn_entry *entry, void *user) {
    const tn__parallel *p = user;
    tn_tensor *grad = tn_grad_of(*entry->field);
    tn_work_wait(tn_all_reduce(p->group, grad, TN_MEAN), 0);
    return tn_work_wait(tn_all_reduce(p->outer, grad, TN_MEAN), 0) == TN_OK;
}

static void average_grads(tn__parallel *p) {
    if (!tn__parallel_all_ready(p)) { return; }
    tn_module_each(p->module, (tn_walk){0}, average_twice, p);
}

static const tn__parallel_rules twice = {
    .name = "averaging",
    .operation = "twice",
    .state_size = sizeof(tn__parallel),
    .param_size = sizeof(tn__parallel_param),
    .ended = average_grads,
};

/* Ranks 0 1 and 2 3 are the inner groups; 0 2 and 1 3 the outer ones. */
static void over_two_groups(tn_group *world, void *user) {
    const char *odd = user; /* the rank that differs, fails early, or fails in a step; or "" */
    int rank = tn_group_rank(world);
    bool mine = rank == odd[0] - '0';
    tn_group *groups[4];
    for (int i = 0; i < 4; i++) {
        int first = i < 2 ? 2 * i : i - 2;
        groups[i] = tn_group_new(world, (int[]){first, first + (i < 2 ? 1 : 2)}, 2);
        tn_group_set_timeout(groups[i], 60);
    }
    net m;
    net_init(&m, 5 + (uint64_t)rank);
    tn_module_requires_grad(&m.extra, !(mine && strstr(odd, "differs")));
    if (mine && strstr(odd, "fails")) { tn_raise(TN_EVALUE, "early"); }
    tn__parallel *p =
        tn__parallel_attach(&m, groups[rank / 2], groups[2 + rank % 2], &twice, "", NULL);
    if (p) {
        net want;
        net_init(&want, 5);
        numbers a = params_of(&m), b = params_of(&want);
        CHECK(same_numbers(&a, &b)); /* those of rank 0 of the world */
        CHECK(tn_default_generator()->stream == (uint64_t)rank + 1);
        tn_module_finish(&want);
        m.use_extra = !(mine && strstr(odd, "steps"));
        net_backward(&m, rank);
    }
    CHECK((tn_error() == TN_OK) == (odd[0] == 0));
    if (tn_error() == TN_OK) {
        numbers a[4], is = grads_of(&m);
        for (int r = 0; r < 4; r++) {
            a[r] = grads_alone(5, true, r);
        }
        numbers low = numbers_sum(&a[0], &a[1], 2), high = numbers_sum(&a[2], &a[3], 2);
        numbers want = numbers_sum(&low, &high, 2);
        CHECK(same_numbers(&is, &want));
    }
    tn_module_finish(&m);
    for (int i = 0; i < 4; i++) {
        tn_group_free(groups[i]);
    }
}

static void over_a_foreign_group(tn_group *world, void *user) {
    tn_group *first = tn_group_new(world, (int[]){0}, 1);
    net m;
    net_init(&m, 5);
    bool mine = tn_group_rank(world) == 0;
    CHECK((tn__parallel_attach(&m, NULL, first, &twice, "", NULL) != NULL) == mine);
    CHECK(mine || strstr(tn_error_message(), "this rank is not a member of group"));
    tn_error_clear();
    tn_module_finish(&m);
    tn_group_free(first);
}

TEST(a_strategy_over_two_groups) {
    run_ok(4, over_two_groups, "");
    assert_contains(run_failing(4, over_two_groups, "3 differs", TN_EMISMATCH), "frozen");
    assert_contains(run_failing(4, over_two_groups, "2 fails", TN_EVALUE), "early");
    assert_contains(run_failing(4, over_two_groups, "1 steps", TN_ESTATE), "did not reach");
    run_ok(2, over_a_foreign_group, NULL);
}
