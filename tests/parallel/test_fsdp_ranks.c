/* Sharding over real processes, on each engine: the bits of one rank that accumulates. */

#include "tests/support/gloo.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"
#include "train.h"

/* ---- Bodies: the argument is ENGINE ---------------------------------------------------------- */

static tn_group *start_world(const char *engine) {
    tn_dist_options o = tn_dist_defaults();
    o.engine = engine;
    o.timeout = 30;
    tn_group *world = tn_dist_init(o);
    rank_assert(world != NULL);
    return world;
}

static int finish_world(void) {
    tn_dist_finish();
    rank_assert(tn_error() == TN_OK);
    return 0;
}

static int compare_matrix(tn_group *unused, const char *engine) {
    rank_assert(train_matrix_agrees(start_world(engine), 1));
    return finish_world();
}

/* Two replicas of two shards, with norms, ignored and unused parameters. */
static int train_replicas(tn_group *unused, const char *engine) {
    tn_group *world = start_world(engine);
    for (int i = 0; i < 4; i++) {
        train_run run = train_run_of(TRAIN_BY_HAND, 4);
        run.replicas = 2;
        run.bf16 = i % 2;
        run.clip = 0.2;
        train_bits by_hand = train_as_rank(world, &run);
        run.how = TRAIN_FSDP;
        run.options.ignore = i > 1 ? "wte.weight h.0.*.*.weight" : NULL;
        run.options.find_unused = i > 1;
        train_bits cut = train_as_rank(world, &run);
        rank_assert(tn_error() == TN_OK && train_same(cut, by_hand));
        free(by_hand.data);
        free(cut.data);
    }
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
static int thaw_units(tn_group *unused, const char *engine) {
    tn_group *world = start_world(engine);
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
    tn_fsdp_options o = tn_fsdp_defaults();
    o.units = "a b";
    o.stage = 2;
    o.find_unused = true;
    tn_fsdp(&m, world, NULL, o);
    tn_module_requires_grad(&m, true);
    tn_sgd_options plain = tn_sgd_defaults();
    plain.lr = 1;
    tn_optim *opt = tn_sgd(&m, plain);
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

static const rank_entry bodies[] = {
    {"-tell", compare_matrix}, {"-replicate", train_replicas}, {"-thaw", thaw_units}};

/* ---- Tests ----------------------------------------------------------------------------------- */

PLAIN_TEST(test_shm) {
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_pass(ranks, "-tell", "shm");
    }
    ranks_pass(4, "-replicate", "shm");
    ranks_pass(2, "-thaw", "shm");
}

PLAIN_TEST(test_gloo) {
    if (!gloo_is_here()) {
        skip();
    }
    for (int ranks = 2; ranks <= 4; ranks++) {
        ranks_pass(ranks, "-tell", "gloo");
    }
    ranks_pass(4, "-replicate", "gloo");
    ranks_pass(2, "-thaw", "gloo");
}

int main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(*bodies));
    return tests_run(NULL, NULL);
}
