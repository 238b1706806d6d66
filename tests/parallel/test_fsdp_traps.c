/* Sharding: known mistakes, each with the smallest model that shows it. Ranks are threads; the
 * reference is one rank that accumulates. */

#include "distributed/group/group.h"
#include "fsdp_net.h"
#include "train.h"

#include "tests/support/temp.h"

static tn_fsdp_options summing_options(const char *units) {
    return TN_WITH(tn_fsdp, .sum = true, .units = units);
}

static void init_and_cut(net *m, tn_group *g, const char *units) {
    net_init(m, 1);
    CHECK(tn_fsdp(m, g, NULL, summing_options(units)) != NULL);
}

/* ---- Recompute around units, and gathers ----------------------------------------------------- */

typedef struct counted {
    train_run run;
    int64_t gathers, scatters;
} counted;

static void counts_messages(tn_group *g, void *user) {
    const counted *want = user;
    TN_SCOPE;
    mesh_model m;
    train_model(&m, &want->run, 1);
    train_groups groups = train_attach(&m, &want->run, g);
    tn_fsdp_state *s = groups.fsdp;
    for (int step = 0; step < 3; step++) {
        uint64_t operations = g->sequence;
        tn_fsdp_stats before = tn_fsdp_statistics(s);
        {
            TN_SCOPE;
            tn_backward(tn_lm_loss(&m, train_tokens(&want->run, 0), train_tokens(&want->run, 1)));
        }
        tn_module_zero_grad(&m);
        tn_fsdp_stats after = tn_fsdp_statistics(s);
        CHECK(after.gathers - before.gathers == want->gathers);
        CHECK(after.scatters - before.scatters == want->scatters);
        CHECK(after.whole == 0); /* nothing stays gathered */
        CHECK(g->sequence - operations == (uint64_t)(want->gathers + want->scatters));
    }
    tn_module_finish(&m);
}

/* A unit is gathered for its forward and for its backward, however often it is recomputed in
 * between; the last unit of forward stays for backward. There are no other messages: with 12 blocks
 * 37. */
TEST(test_gathers_of_a_step) {
    for (int i = 0; i < 4 * 3; i++) {
        counted c = {.run = train_run_of(TRAIN_FSDP, 2)};
        c.run.recompute = (train_recompute)(i % 4);
        c.run.sharding.prefetch = i / 4;
        int64_t units = c.run.model.layers * (c.run.recompute == RECOMPUTE_AROUND ? 2 : 1);
        c.gathers = 2 * units;
        c.scatters = units + 1;
        run_ok(2, counts_messages, &c);
    }
}

/* ---- Parameters that some ranks do not use --------------------------------------------------- */

static void leaves_out(tn_group *g, void *user) {
    net m;
    init_and_cut(&m, g, user);
    m.h[1].skips = true;
    net_backward(&m, 0);
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    CHECK(strstr(tn_error_message(), "h.1.inner.in.weight, h.1.inner.in.bias"));
    CHECK(strstr(tn_error_message(), "find_unused"));
    tn_module_finish(&m);
}

TEST(test_unused_parameters_are_named) {
    double begin = tn_flight_now();
    run_failing(3, leaves_out, "h.*", TN_ESTATE);
    run_failing(3, leaves_out, "head", TN_ESTATE);
    assert_true(tn_flight_now() - begin < 60); /* at once, not after the timeout of 600 s */
}

/* Each rank leaves out a different unit, so their gathers do not match. */
RANKS_TEST_FAILS(test_units_that_ranks_leave_out, 2, TN_ESTATE, "") {
    net m;
    net_init(&m, 1);
    tn_fsdp_options o = summing_options("h.*.inner");
    o.find_unused = true;
    o.prefetch = 0;
    CHECK(tn_fsdp(&m, world, NULL, o) != NULL);
    m.h[tn_group_rank(world)].skips = true;
    net_backward(&m, 0);
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    CHECK(strstr(tn_error_message(), "different units"));
    tn_module_finish(&m);
}

/* ---- Errors midway --------------------------------------------------------------------------- */

static tn_values stumble_forward(tn_module *m, tn_values in, void *user) {
    tn_raise(TN_EVALUE, "a forward stumbles");
    return in;
}

static void stumble_backward(tn_module *m, void *user) {
    tn_raise(TN_EVALUE, "a backward stumbles");
}

/* Rank 1 raises an error in its second step. */
static void fails_midway(tn_group *g, void *user) {
    net m;
    init_and_cut(&m, g, "h.*");
    for (int step = 0; step < 3 && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        if (tn_group_rank(g) == 1 && step == 1) {
            tn_module_hook(&m.h[1], (tn_module_hooks){.backward_before = stumble_backward});
        }
        net_backward(&m, step);
        tn_module_zero_grad(&m);
    }
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_EVALUE : TN_EPEER));
    CHECK(tn_group_rank(g) == 1 || strstr(tn_error_message(), "rank 1"));
    stay_until_told(g);
    tn_module_finish(&m);
}

TEST(test_an_error_midway) {
    double begin = tn_flight_now();
    assert_contains(run_failing(3, fails_midway, NULL, TN_EVALUE), "a backward stumbles");
    assert_true(tn_flight_now() - begin < 60);
}

/* ---- Hybrid ---------------------------------------------------------------------------------- */

/* Two replicas of two shards. Rank 1's hooks fail (user), or rank 3 has another model (NULL). */
static void fails_in_one_replica(tn_group *g, void *user) {
    int sizes[] = {2, 2}, rank = tn_group_rank(g);
    tn_mesh *mesh = tn_mesh_new(g, 2, sizes, (const char *[]){"replicate", "shard"});
    net m;
    net_init(&m, 1);
    tn_module_requires_grad(&m.wte, rank != 3 || user);
    tn_fsdp(&m, tn_mesh_group(mesh, "shard"), tn_mesh_group(mesh, "replicate"),
            summing_options("h.*"));
    CHECK(tn_error() == TN_OK || !user);
    if (rank == 1 && user) { tn_module_hook(&m.h[1], *(const tn_module_hooks *)user); }
    for (int step = 0; step < 3 && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        net_backward(&m, step);
        tn_module_zero_grad(&m);
    }
    CHECK(tn_error() != TN_OK); /* on every rank, even without a common group */
    CHECK(strstr(tn_error_message(), user ? "stumbles" : "frozen"));
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

TEST(test_errors_reach_all_replicas) {
    double begin = tn_flight_now();
    tn_module_hooks forward = {.before = stumble_forward},
                    backward = {.backward_before = stumble_backward};
    run_failing(4, fails_in_one_replica, &forward, TN_EVALUE);
    run_failing(4, fails_in_one_replica, &backward, TN_EVALUE);
    run_failing(4, fails_in_one_replica, NULL, TN_EMISMATCH);
    assert_true(tn_flight_now() - begin < 60);
}

/* Two replicas of one shard. Replica 1 leaves a layer out: it takes replica 0's gradients of it. */
static void leaves_out_in_a_replica(tn_group *g, void *user) {
    numbers *ends = user;
    int sizes[] = {2, 1}, rank = tn_group_rank(g);
    tn_mesh *mesh = tn_mesh_new(g, 2, sizes, (const char *[]){"replicate", "shard"});
    tn_fsdp_options o = summing_options("head");
    o.find_unused = true;
    net m;
    net_init(&m, 1);
    m.h[1].skips = rank == 1;
    tn_fsdp(&m, tn_mesh_group(mesh, "shard"), tn_mesh_group(mesh, "replicate"), o);
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1));
    net_backward(&m, rank);
    CHECK(tn_optim_step(opt) == TN_OK);
    ends[rank] = numbers_of(&m);
    tn_barrier(g);
    CHECK(same_numbers(&ends[0], &ends[1]));
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

TEST(test_a_replica_that_leaves_out) {
    numbers ends[2] = {0};
    run_ok(2, leaves_out_in_a_replica, ends);
}
