/* Sharding over real processes, on each engine: the bits of one rank that accumulates. */

#include "core/plugin.h"
#include "distributed/group/engine/gloo/gloo.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"
#include "train.h"

/* ---- Bodies: the argument is ENGINE ---------------------------------------------------------- */

static tn_group *start(const char *engine) {
    tn_dist_options o = tn_dist_defaults();
    o.engine = engine;
    o.timeout = 30;
    tn_group *world = tn_dist_init(o);
    rank_assert(world != NULL);
    return world;
}

static int finish(void) {
    tn_dist_finish();
    rank_assert(tn_error() == TN_OK);
    return 0;
}

static int tell(tn_group *unused, const char *engine) {
    (void)unused;
    rank_assert(train_matrix_agrees(start(engine), 1));
    return finish();
}

/* Two replicas of two shards, with everything that travels besides. */
static int replicate(tn_group *unused, const char *engine) {
    (void)unused;
    tn_group *world = start(engine);
    for (int i = 0; i < 4; i++) {
        train_run run = train_run_of(TRAIN_BY_HAND, 4);
        run.replicas = 2;
        run.bf16 = i % 2;
        run.clip = 0.2;
        train_bits by_hand = train(world, &run);
        run.how = TRAIN_FSDP;
        run.options.ignore = i > 1 ? "wte.weight h.0.*.*.weight" : NULL;
        run.options.find_unused = i > 1;
        train_bits cut = train(world, &run);
        rank_assert(tn_error() == TN_OK && train_same(cut, by_hand));
        free(by_hand.data);
        free(cut.data);
    }
    return finish();
}

static const rank_entry bodies[] = {{"-tell", tell}, {"-replicate", replicate}};

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_shm(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_pass(ranks, "-tell", "shm");
    }
    ranks_pass(4, "-replicate", "shm");
}

static void test_gloo(void **state) {
    (void)state;
    char why[256];
    if (!tn__plugin_symbol("gloo", TN__GLOO_SYMBOL, why, sizeof(why))) {
        fprintf(stderr, "%s\n", why);
        skip();
    }
    for (int ranks = 2; ranks <= 4; ranks++) {
        ranks_pass(ranks, "-tell", "gloo");
    }
    ranks_pass(4, "-replicate", "gloo");
}

int main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv, bodies, 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm),
        cmocka_unit_test(test_gloo),
    };
    return cmocka_run_group_tests_name("sharding over processes", tests, temp_flights, temp_clean);
}
