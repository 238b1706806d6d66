/* Local SGD and DiLoCo: what the ranks' weights become, what is kept, and what is refused. Ranks
 * are threads, or processes where one is killed. */

#include "tests/support/temp.h"

#include "tests/support/no_memory.h"
#include "tests/support/ranks.h"

#include "ddp_net.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

static void take_step(net *m, tn_optim *opt, tn_group *g, int step) {
    net_backward(m, step * tn_group_size(g) + tn_group_rank(g));
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
}

static double most_apart(const numbers *a, const numbers *b) {
    double most = a->count == b->count ? 0.0 : INFINITY;
    for (int i = 0; i < a->count; i++) {
        most = fmax(most, fabs((double)a->at[i] - (double)b->at[i]));
    }
    return most;
}

/* ---- Local SGD ------------------------------------------------------------------------------- */

static bool average_weight(const tn_entry *entry, void *user) {
    TN_NO_GRAD;
    return tn_work_wait(tn_all_reduce(user, *entry->field, TN_MEAN), 0) == TN_OK;
}

RANKS_TEST(test_takes_the_mean, 2, 3) {
    net m, by_hand;
    net_init(&m, 1 + (uint64_t)tn_group_rank(world)); /* all take rank 0's */
    net_init(&by_hand, 1);
    tn_optim *opt = tn_adamw(&m, TN_WITH(tn_adamw, .lr = 0.01)),
             *opt_by_hand = tn_adamw(&by_hand, TN_WITH(tn_adamw, .lr = 0.01));
    tn_local_sgd *l = tn_local_sgd_new(&m, world, TN_WITH(tn_local_sgd, .every = 3));
    for (int step = 0; step < 8; step++) {
        take_step(&m, opt, world, step);
        take_step(&by_hand, opt_by_hand, world, step);
        CHECK(tn_local_sgd_step(l) == TN_OK);
        if (step % 3 == 2) { tn_module_each(&by_hand, (tn_walk){0}, average_weight, world); }
        numbers is = params_of(&m), want = params_of(&by_hand);
        CHECK(same_numbers(&is, &want));
        CHECK(same_on_ranks(world, &is) == (step % 3 == 2));
    }
    tn_local_sgd_stats s = tn_local_sgd_statistics(l);
    CHECK(s.rounds == 2 && s.sent == 2 * 4 * tn_module_count(&m) && s.drift > 0.0);
    CHECK(tn_local_sgd_sync(l) == TN_OK);
    numbers end = params_of(&m);
    CHECK(same_on_ranks(world, &end));
    CHECK(tn_local_sgd_sync(l) == TN_OK && tn_local_sgd_statistics(l).rounds == 3);
    tn_module_free(l);
    tn_optim_free(opt);
    tn_optim_free(opt_by_hand);
    tn_module_finish(&m);
    tn_module_finish(&by_hand);
}

/* Buffers are rank 0's, and a frozen parameter stays as it is. */
RANKS_TEST(test_buffers_and_frozen_parameters, 2) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_module_requires_grad(&m.in, false);
    tn_local_sgd *l = tn_local_sgd_new(&m, world, TN_WITH(tn_local_sgd, .every = 1));
    tn_fill_(m.mean, tn_group_rank(world) + 5);
    tn_fill_(tn_detach(m.in.bias), tn_group_rank(world));
    CHECK(tn_local_sgd_step(l) == TN_OK);
    CHECK(tn_item(tn_max(m.mean, TN_DIMS(), false)) == 5.0);
    CHECK(tn_item(tn_max(m.in.bias, TN_DIMS(), false)) == tn_group_rank(world));
    int64_t frozen = tn_count(m.in.weight) + tn_count(m.in.bias);
    CHECK(tn_local_sgd_statistics(l).sent == 4 * (tn_module_count(&m) - frozen));
    tn_module_free(l);
    tn_module_finish(&m);
}

/* Of weights in f16, whose squares may not fit into it. */
static void drifts_apart(tn_group *g, void *user) {
    TN_SCOPE;
    double apart = *(double *)user;
    tn_linear m;
    tn_linear_init(&m, 4, 4, TN_WITH(tn_linear, .dtype = TN_F16, .bias = false));
    tn_local_sgd *l = tn_local_sgd_new(&m, g, TN_WITH(tn_local_sgd, .every = 1));
    tn_fill_(tn_detach(m.weight), tn_group_rank(g) * apart);
    CHECK(tn_local_sgd_step(l) == TN_OK);
    double drift = tn_local_sgd_statistics(l).drift; /* 16 weights, each apart / 2 from the mean */
    CHECK(fabs(drift - 2.0 * apart) < 0.01 * apart);
    tn_module_free(l);
    tn_module_finish(&m);
}

TEST(test_drift) {
    run_ok(2, drifts_apart, &(double){1e-4});
    run_ok(2, drifts_apart, &(double){600.0});
}

/* ---- Against data parallelism ---------------------------------------------------------------- */

typedef struct equal_run {
    double inner, outer, momentum; /* learning rates, and that of the outer step */
    bool nesterov;
} equal_run;

/* After each step, the outer step is one of SGD with both learning rates. */
static void equals_ddp(tn_group *g, void *user) {
    const equal_run *run = user;
    net m, want;
    net_init(&m, 1);
    net_init(&want, 1);
    tn_ddp(&want, g, tn_ddp_defaults());
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = run->inner));
    tn_optim *together =
        tn_sgd(&want, TN_WITH(tn_sgd, .lr = run->inner * run->outer, .momentum = run->momentum,
                              .nesterov = run->nesterov));
    tn_local_sgd *l =
        tn_local_sgd_new(&m, g,
                         TN_WITH(tn_diloco, .every = 1, .lr = run->outer, .momentum = run->momentum,
                                 .nesterov = run->nesterov));
    for (int step = 0; step < 6; step++) {
        take_step(&m, opt, g, step);
        take_step(&want, together, g, step);
        CHECK(tn_local_sgd_step(l) == TN_OK);
        numbers a = params_of(&m), b = params_of(&want);
        CHECK(most_apart(&a, &b) < 1e-6);
        CHECK(same_on_ranks(g, &a));
    }
    tn_module_free(l);
    tn_optim_free(opt);
    tn_optim_free(together);
    tn_module_finish(&m);
    tn_module_finish(&want);
}

TEST(test_every_step_is_data_parallelism) {
    equal_run runs[] = {{0.1, 1.0, 0.0, false},
                        {0.1, 0.7, 0.0, false},
                        {0.1, 1.0, 0.9, true},
                        {0.1, 0.7, 0.9, true},
                        {0.1, 0.7, 0.9, false}};
    for (size_t i = 0; i < sizeof(runs) / sizeof(*runs); i++) {
        run_ok(i % 2 ? 3 : 2, equals_ddp, &runs[i]);
    }
}

/* With one rank it still steps: a lookahead. */
TEST(test_one_rank) {
    equals_ddp(NULL, &(equal_run){0.1, 0.7, 0.9, true});
    assert_int_equal(failures, 0);
}

/* Between two hosts of two ranks each: data parallelism within, DiLoCo between. */
RANKS_TEST(test_above_data_parallelism, 4) {
    tn_mesh *mesh = tn_mesh_new(world, 2, (const int[]){2, 2}, (const char *[]){"hosts", "local"});
    net m;
    net_init(&m, 1);
    tn_ddp(&m, tn_mesh_group(mesh, "local"), tn_ddp_defaults());
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1));
    tn_local_sgd *l =
        tn_local_sgd_new(&m, tn_mesh_group(mesh, "hosts"), TN_WITH(tn_diloco, .every = 2));
    for (int step = 0; step < 4; step++) {
        take_step(&m, opt, world, step);
        CHECK(tn_local_sgd_step(l) == TN_OK);
        numbers is = params_of(&m);
        CHECK(same_on_ranks(tn_mesh_group(mesh, "local"), &is));
        CHECK(same_on_ranks(world, &is) == (step % 2 == 1));
    }
    tn_module_free(l);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

/* ---- Resuming -------------------------------------------------------------------------------- */

/* A program's whole state, so that one file has all of it. */
typedef struct whole {
    tn_module base;
    net net;
    tn_local_sgd *outer;
    tn_optim *opt;
} whole;

static tn_tensor *whole_forward(tn_module *self, tn_tensor *x) {
    return tn_call(&((whole *)self)->net, x);
}

static void whole_init(whole *w, tn_group *g) {
    tn_module_init(w, "whole", whole_forward);
    net_init(&w->net, 1);
    TN_ADD(w, net);
    TN_OWN(w, outer, tn_local_sgd_new(&w->net, g, TN_WITH(tn_diloco, .every = 4)));
    w->opt = tn_adamw(&w->net, TN_WITH(tn_adamw, .lr = 0.01));
}

static void whole_train(whole *w, tn_group *g, int first, int end) {
    for (int step = first; step < end; step++) {
        take_step(&w->net, w->opt, g, step);
        CHECK(tn_local_sgd_step(w->outer) == TN_OK);
    }
}

static numbers whole_end(whole *w) {
    numbers n = params_of(&w->net);
    tn_optim_free(w->opt);
    tn_module_finish(w);
    return n;
}

/* Saved after 6 steps: the moments are there, and two steps since the last synchronisation. */
static void resumes_run(tn_group *g, void *user) {
    char path[600];
    snprintf(path, sizeof(path), "%s-%d", (const char *)user, tn_group_rank(g));
    whole w;
    whole_init(&w, g);
    whole_train(&w, g, 0, 6);
    tn_checkpoint c = {.model = &w, .optim = w.opt, .step = 6};
    CHECK(tn_checkpoint_save(&c, path) == TN_OK);
    whole_train(&w, g, 6, 13);
    numbers through = whole_end(&w);
    whole_init(&w, g);
    c = (tn_checkpoint){.model = &w, .optim = w.opt};
    CHECK(tn_checkpoint_load(&c, path) == TN_OK && c.step == 6);
    whole_train(&w, g, 6, 13);
    numbers again = whole_end(&w);
    CHECK(same_numbers(&through, &again));
}

TEST(test_resumes_bit_for_bit) {
    const char *base = temp_path("rank");
    run_ok(2, resumes_run, base);
}

static void count_differences(tn_log_level level, const char *text, void *user) {
    *(int *)user += strstr(text, "the ranks' models differ") != NULL;
}

/* A saver takes one rank's copy: rank 0 warns, unless all have just synchronised. */
static void warns_of_savers(tn_group *g, void *user) {
    int warned = 0;
    bool first = tn_group_rank(g) == 0;
    if (first) { tn_log_to(count_differences, TN_LOG_WARN, &warned); }
    whole w;
    whole_init(&w, g);
    tn_checkpoint c = {.model = &w, .optim = w.opt};
    tn_saver *s = tn_saver_new(g, user, tn_saver_defaults());
    CHECK(tn_saver_save(s, &c) == TN_OK && warned == 0);
    whole_train(&w, g, 0, 1);
    CHECK(tn_saver_save(s, &c) == TN_OK && warned == first);
    char path[600];
    snprintf(path, sizeof(path), "%s/one", (const char *)user);
    CHECK(tn_dist_save(g, &c, path) == TN_OK && warned == 2 * first);
    whole_train(&w, g, 1, 4);
    CHECK(tn_saver_save(s, &c) == TN_OK && tn_saver_wait(s) == TN_OK && warned == 2 * first);
    tn_saver_free(s);
    whole_end(&w);
    if (first) { tn_log_to(NULL, TN_LOG_ERROR, NULL); }
}

TEST(test_savers_warn) {
    const char *folder = temp_path("saver");
    run_ok(2, warns_of_savers, folder);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

TEST(test_refusals) {
    static const struct {
        int64_t every;
        double lr, momentum;
        bool nesterov, made;
    } bad[] = {{0, 1, 0, 0, 1},    {1, 0, 0, 0, 1},   {1, NAN, 0, 0, 1}, {1, 1, 1, 0, 1},
               {1, 1, -0.1, 0, 1}, {1, 1, NAN, 0, 1}, {1, 1, 0, 1, 1},   {1, 1, 0, 0, 0}};
    net m;
    net_init(&m, 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        tn_local_sgd_options o = TN_WITH(tn_local_sgd, .every = bad[i].every, .lr = bad[i].lr,
                                         .momentum = bad[i].momentum, .nesterov = bad[i].nesterov);
        o.from_defaults = bad[i].made;
        assert_none(tn_local_sgd_new(&m, NULL, o), TN_EVALUE, "local_sgd");
    }
    assert_none(tn_local_sgd_new(NULL, NULL, tn_local_sgd_defaults()), TN_EVALUE, "NULL");
    tn_local_sgd *l = tn_local_sgd_new(&m, NULL, tn_diloco_defaults());
    assert_inert(tn_call(l, tn_ones(TN_DIMS(1), TN_F32)), TN_EUNSUPPORTED, "no forward");
    tn_module_free(l);
    tn_module_finish(&m);
}

static void shards_first(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    tn_fsdp(&m, g, NULL, TN_WITH(tn_fsdp, .units = ""));
    CHECK(!tn_local_sgd_new(&m, g, tn_local_sgd_defaults()));
    tn_module_finish(&m);
}

static void options_differ(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    CHECK(!tn_local_sgd_new(&m, g, TN_WITH(tn_local_sgd, .every = 3 + tn_group_rank(g))));
    tn_module_finish(&m);
}

/* Rank 1 raises, or leaves without a word, before the second synchronisation. */
static void breaks_off(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1));
    tn_local_sgd *l = tn_local_sgd_new(&m, g, TN_WITH(tn_local_sgd, .every = 2));
    for (int step = 0; step < 4 && tn_error() == TN_OK; step++) {
        take_step(&m, opt, g, step);
        if (step == 3 && tn_group_rank(g) == 1) {
            if (!user) { break; }
            tn_raise(TN_EVALUE, "no more data");
        }
        tn_local_sgd_step(l);
        CHECK(step < 3 || tn_error() != TN_OK);
    }
    if (user) { stay_until_told(g); }
    tn_module_free(l);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

static void clear_error(tn_status status, const char *message) {
    tn_error_clear();
}

/* A handler that clears the error makes no agreement of a refusal. */
TEST(test_a_handler_that_clears) {
    net m;
    net_init(&m, 1);
    tn_on_error(clear_error);
    tn_local_sgd *l = tn_local_sgd_new(&m, NULL, TN_WITH(tn_local_sgd, .every = 0));
    tn_saver *s = tn_saver_new(NULL, "", tn_saver_defaults());
    tn_on_error(NULL);
    assert_true(!l && !s);
    tn_module_finish(&m);
}

TEST(test_ranks_that_fail) {
    assert_contains(run_failing(2, shards_first, NULL, TN_EUNSUPPORTED), "not whole");
    assert_contains(run_failing(2, options_differ, NULL, TN_EMISMATCH), "every 4");
    assert_contains(run_failing(3, breaks_off, "", TN_EVALUE), "no more data");
    assert_contains(run_failing(3, breaks_off, NULL, TN_EPEER), "rank 1");
}

/* Trains for ever, with synchronisations that take nearly all of the time. */
RANK(train_on) {
    net m;
    net_init(&m, 1);
    tn_local_sgd *l = tn_local_sgd_new(&m, world, TN_WITH(tn_diloco, .every = 2));
    for (int round = 0; tn_local_sgd_step(l) == TN_OK; round++) {
        if (round == 100) {
            puts("training");
            fflush(stdout);
        }
    }
    tn_module_free(l);
    tn_module_finish(&m);
    return 1;
}

/* A rank that is killed is named at once. */
TEST(test_a_killed_rank) {
    ranks_job job = ranks_start(3, "train_on", "", NULL);
    assert_true(ranks_await_output(&job, 1, "training", 60));
    kill(-job.pid[1], SIGKILL);
    ranks_result result = ranks_wait(&job, 60);
    assert_false(result.timed_out);
    for (int r = 0; r < 3; r += 2) {
        assert_true(WIFEXITED(result.status[r]) && WEXITSTATUS(result.status[r]) == 1);
        assert_says(&result, r, "rank 1");
    }
    ranks_free(&result);
}

static void make_and_step(void) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_local_sgd *l = tn_local_sgd_new(&m, NULL, TN_WITH(tn_diloco, .every = 1));
    if (l) { tn_local_sgd_step(l); }
    tn_module_free(l);
    tn_module_finish(&m);
}

TEST(test_no_memory) {
    assert_true(every_allocation(make_and_step) > 20);
}
