/* Sharding over real processes, on each engine: the bits of one rank that accumulates. */

#include "core/plugin.h"
#include "distributed/group/engine/gloo/gloo.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"
#include "train.h"

/* ---- Bodies: the argument is ENGINE ---------------------------------------------------------- */

static int tell(tn_group *unused, const char *engine) {
    (void)unused;
    tn_dist_options o = tn_dist_defaults();
    o.engine = engine;
    o.timeout = 30;
    tn_group *world = tn_dist_init(o);
    rank_assert(world != NULL);
    rank_assert(train_matrix_agrees(world, 1));
    tn_dist_finish();
    rank_assert(tn_error() == TN_OK);
    return 0;
}

static const rank_entry bodies[] = {{"-tell", tell}};

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_shm(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_pass(ranks, "-tell", "shm");
    }
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
}

int main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv, bodies, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm),
        cmocka_unit_test(test_gloo),
    };
    return cmocka_run_group_tests_name("sharding over processes", tests, temp_flights, temp_clean);
}
