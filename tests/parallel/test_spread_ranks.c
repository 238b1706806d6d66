/* Meshes of real processes, on each engine: the bits of ranks as threads. */

#include "tests/support/gloo.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include "mesh_train.h"

/* The argument is "ENGINE MESH DIGEST …". */
static int train_meshes(tn_group *unused, const char *argument) {
    char engine[32];
    int length = 0;
    rank_assert(sscanf(argument, "%31s %n", engine, &length) == 1);
    tn_dist_options o = tn_dist_defaults();
    o.engine = engine;
    o.timeout = 30;
    tn_group *world = tn_dist_init(o);
    rank_assert(world != NULL);
    rank_assert(mesh_expected(world, argument + length));
    tn_dist_finish();
    return tn_error() != TN_OK;
}

static const rank_entry bodies[] = {{"-train_meshes", train_meshes}};

static void expect_engine(const char *engine, int ranks, const char *const *meshes) {
    char argument[1100];
    snprintf(argument, sizeof(argument), "%s %s", engine,
             mesh_expectation(ranks, tn_cpu(), meshes));
    ranks_pass(ranks, "-train_meshes", argument);
}

PLAIN_TEST(test_shm) {
    expect_engine("shm", 2, meshes_of_two);
    expect_engine("shm", 4, meshes_of_four);
}

PLAIN_TEST(test_gloo) {
    if (!gloo_is_here()) {
        skip();
    }
    expect_engine("gloo", 2, meshes_of_two);
    expect_engine("gloo", 4, meshes_of_four);
}

int main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(*bodies));
    return tests_run(NULL, NULL);
}
