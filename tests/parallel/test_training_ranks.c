/* Training by real processes on each engine: data parallelism and sharding have the bits of one
 * rank, and meshes those of ranks as threads; errors end all ranks with the cause. */

#include "tests/parallel/mesh_train.h"
#include "tests/support/gloo.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <sys/wait.h>

/* ---- Bodies: the argument is ENGINE, with ,checked ,hook ------------------------------------- */

static tn_group *start_world(const char *argument) {
    static char engine[32];
    snprintf(engine, sizeof(engine), "%.*s", (int)strcspn(argument, ", "), argument);
    tn_group *world = tn_dist_init(TN_WITH(
        tn_dist, .engine = engine, .checked = strstr(argument, ",checked") != NULL, .timeout = 30));
    rank_assert(world != NULL);
    return world;
}

static int finish_world(void) {
    tn_dist_finish();
    if (tn_error() != TN_OK) { fprintf(stderr, "%s\n", tn_error_message()); }
    return tn_error() != TN_OK;
}

/* Every fifth: all of them run on threads (test_training.c), and here it is the engine that counts.
 */
PLAIN_RANK(compare_matrix) {
    rank_assert(train_matrix_agrees(start_world(argument), 5, false));
    return finish_world();
}

/* After the engine: "MESH DIGEST …". */
PLAIN_RANK(train_meshes) {
    rank_assert(mesh_expected(start_world(argument), strchr(argument, ' ') + 1));
    return finish_world();
}

typedef struct fork_net {
    tn_module base;
    tn_linear a, b;
    bool right; /* whether b's output is returned */
} fork_net;

static tn_tensor *fork_forward(tn_module *self, tn_tensor *x) {
    fork_net *m = (fork_net *)self;
    tn_tensor *a = tn_call(&m->a, x), *b = tn_call(&m->b, x);
    return m->right ? b : a;
}

static double sum_of_part(tn_linear *m) {
    double sum = 0;
    TN_WHOLE(m);
    tn_copy_out(tn_cast(tn_sum_all(tn_abs(m->weight)), TN_F64), &sum);
    return sum;
}

/* Units that were frozen are thawed, and each rank uses a different one first: the memory in which
 * their gradients are sent is the same on all ranks. */
PLAIN_RANK(thaw_units) {
    tn_group *world = start_world(argument);
    int rank = tn_group_rank(world);
    fork_net m = {.right = false};
    tn_module_init(&m, "fork", fork_forward);
    tn_linear_options bare = TN_WITH(tn_linear, .bias = false);
    tn_linear_init(&m.a, 3, 1, bare);
    tn_linear_init(&m.b, 3, 1, bare);
    tn_module_add(&m, "a", &m.a);
    tn_module_add(&m, "b", &m.b);
    tn_init_constant(m.a.weight, 0);
    tn_init_constant(m.b.weight, 0);
    tn_module_requires_grad(&m, false);
    tn_fsdp(&m, world, NULL, TN_WITH(tn_fsdp, .units = "a b", .stage = 2, .find_unused = true));
    tn_module_requires_grad(&m, true);
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 1));
    for (int step = 0; step < 3; step++) {
        TN_SCOPE;
        m.right = (step + rank) % 2;
        tn_backward(tn_sum_all(tn_call(&m, tn_full(TN_DIMS(1, 3), m.right ? 2 : 8, TN_F32))));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    rank_assert(tn_error() == TN_OK);
    /* in each step, one of the two ranks uses a and the other b; gradients are averaged */
    rank_assert(sum_of_part(&m.a) == 3 * 3 * 8 / 2.0 && sum_of_part(&m.b) == 3 * 3 * 2 / 2.0);
    tn_optim_free(opt);
    tn_module_finish(&m);
    return finish_world();
}

static tn_tensor *fail_here(tn_tensor *grad, void *user) {
    tn_raise(TN_EVALUE, "a hook does not like this gradient");
    return NULL;
}

/* Rank 1 has an error in its second backward (",hook"), or fewer batches than the others. */
PLAIN_RANK(end_badly) {
    tn_group *world = start_world(argument);
    bool hook = strstr(argument, ",hook") != NULL, mine = tn_group_rank(world) == 1;
    tn_linear m;
    tn_linear_init(&m, 300, 300, tn_linear_defaults());
    tn_ddp(&m, world, tn_ddp_defaults());
    for (int step = 0; step < (mine && !hook ? 1 : 3) && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        if (mine && hook && step == 1) { tn_on_grad(m.weight, fail_here, NULL); }
        tn_backward(tn_sum_all(tn_call(&m, tn_ones(TN_DIMS(4, 300), TN_F32))));
        tn_module_zero_grad(&m);
    }
    tn_module_finish(&m);
    return finish_world();
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void expect_meshes(const char *engine, int ranks, const char *const *meshes) {
    char argument[1100];
    snprintf(argument, sizeof(argument), "%s %s", engine,
             mesh_expectation(ranks, tn_cpu(), meshes));
    ranks_pass(ranks, "train_meshes", argument);
}

static void expect_engine(const char *engine) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        ranks_pass(ranks, "compare_matrix", engine);
    }
    ranks_pass(2, "thaw_units", engine);
    expect_meshes(engine, 2, meshes_of_two);
    expect_meshes(engine, 4, meshes_of_four);
}

PLAIN_TEST(test_shm) {
    ranks_pass(1, "compare_matrix", "shm");
    expect_engine("shm");
    ranks_pass(2, "compare_matrix", "shm,checked");
    ranks_pass(8, "compare_matrix", "shm");
}

PLAIN_TEST(test_gloo) {
    if (!gloo_is_here()) { skip(); }
    expect_engine("gloo");
}

static ranks_result run_badly(const char *argument) {
    char flights[96];
    snprintf(flights, sizeof(flights), "TERN_FLIGHT_DIR=%s", temp_folder);
    ranks_result r = ranks_run(3, "end_badly", argument, (const char *[]){flights, NULL}, 60);
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
