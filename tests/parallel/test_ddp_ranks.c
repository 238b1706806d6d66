/* Data parallelism over real processes: the same bits as one rank that accumulates, on each engine;
 * and errors that end all ranks with the cause. */

#include "ddp_train.h"
#include "tests/support/gloo.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <sys/wait.h>

/* ---- Bodies: the argument is ENGINE, with ,checked ,hook ,bf16 ------------------------------- */

static tn_group *start_world(const char *argument) {
    static char engine[32];
    tn_dist_options o = tn_dist_defaults();
    snprintf(engine, sizeof(engine), "%.*s", (int)strcspn(argument, ","), argument);
    o.engine = engine;
    o.checked = strstr(argument, ",checked") != NULL;
    o.timeout = 30;
    return tn_dist_init(o);
}

static int finish_world(void) {
    tn_dist_finish();
    if (tn_error() != TN_OK) {
        fprintf(stderr, "%s\n", tn_error_message());
    }
    return tn_error() != TN_OK;
}

static int train_each_way(tn_group *unused, const char *argument) {
    tn_group *world = start_world(argument);
    ddp_run run = ddp_run_of(tn_group_size(world));
    run.steps = 2;
    run.bf16 = strstr(argument, ",bf16") != NULL;
    train_bits together = ddp_train(world, &run);
    rank_assert(tn_error() == TN_OK);
    train_bits alone = ddp_train(NULL, &run);
    rank_assert(train_same(together, alone));
    run.mean = true;
    run.options.sum = false;
    train_bits buckets = ddp_train(world, &run);
    run.naive = true;
    train_bits naive = ddp_train(world, &run);
    rank_assert(train_same(buckets, naive));
    free(together.data);
    free(alone.data);
    free(buckets.data);
    free(naive.data);
    return finish_world();
}

static tn_tensor *fail_here(tn_tensor *grad, void *user) {
    tn_raise(TN_EVALUE, "a hook does not like this gradient");
    return NULL;
}

/* Rank 1 has an error in its second backward (",hook"), or fewer batches than the others. */
static int end_badly(tn_group *unused, const char *argument) {
    tn_group *world = start_world(argument);
    bool hook = strstr(argument, ",hook") != NULL, mine = tn_group_rank(world) == 1;
    tn_linear m;
    tn_linear_init(&m, 300, 300, tn_linear_defaults());
    tn_ddp(&m, world, tn_ddp_defaults());
    for (int step = 0; step < (mine && !hook ? 1 : 3) && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        if (mine && hook && step == 1) {
            tn_on_grad(m.weight, fail_here, NULL);
        }
        tn_backward(tn_sum_all(tn_call(&m, tn_ones(TN_DIMS(4, 300), TN_F32))));
        tn_module_zero_grad(&m);
    }
    tn_module_finish(&m);
    return finish_world();
}

static const rank_entry bodies[] = {{"-train", train_each_way}, {"-end_badly", end_badly}};

/* ---- Tests ----------------------------------------------------------------------------------- */

static void run_train(int ranks, const char *argument) {
    ranks_pass(ranks, "-train", argument);
}

PLAIN_TEST(test_shm) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        run_train(ranks, "shm");
    }
    run_train(2, "shm,checked");
    run_train(3, "shm,bf16");
}

PLAIN_TEST(test_eight_ranks_on_shm) {
    run_train(8, "shm");
}

PLAIN_TEST(test_gloo) {
    if (!gloo_is_here()) {
        skip();
    }
    run_train(2, "gloo");
    run_train(3, "gloo");
    run_train(4, "gloo");
}

static ranks_result run_badly(const char *argument) {
    char flights[96];
    snprintf(flights, sizeof(flights), "TERN_FLIGHT_DIR=%s", temp_folder);
    ranks_result r = ranks_run(3, "-end_badly", argument, (const char *[]){flights, NULL}, 60);
    assert_false(r.timed_out);
    return r;
}

static void must_say(const ranks_result *r, int rank, const char *text) {
    bool failed = !WIFEXITED(r->status[rank]) || WEXITSTATUS(r->status[rank]) == 1;
    if (!failed || !strstr(r->output[rank], text)) {
        fail_msg("rank %d did not end with \"%s\" but with: %s", rank, text, r->output[rank]);
    }
}

PLAIN_TEST(test_errors_reach_all) {
    ranks_result r = run_badly("shm,hook");
    for (int rank = 0; rank < 3; rank++) {
        must_say(&r, rank, "does not like this gradient");
    }
    ranks_free(&r);
    r = run_badly("shm");
    must_say(&r, 0, "rank 1");
    must_say(&r, 0, "tn_ddp_join");
    must_say(&r, 2, "tn_ddp_join");
    ranks_free(&r);
}

int main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv, bodies, 2);
    return tests_run(NULL, NULL);
}
