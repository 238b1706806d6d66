/* Meshes of ranks with devices, over the emulator: processes have the same bits as threads, and
 * every engine the same bits. */

#include "device_ranks.h"
#include "tests/parallel/mesh_train.h"
#include "tests/support/test.h"

/* The argument is "ENGINE MESH DIGEST …". */
static int train_meshes(tn_group *unused, const char *argument) {
    (void)unused;
    char engine[32];
    int length = 0;
    rank_assert(sscanf(argument, "%31s %n", engine, &length) == 1);
    tn_group *world = device_join(engine, 100);
    rank_assert(world != NULL);
    rank_assert(tn_default_device().kind == TN_CUDA);
    rank_assert(mesh_expected(world, argument + length));
    return device_leave();
}

static const rank_entry bodies[] = {{"-train_meshes", train_meshes}};

static void expect_engine(const char *engine, int ranks, const char *const *meshes) {
    char argument[1100];
    snprintf(argument, sizeof(argument), "%s %s", engine,
             mesh_expectation(ranks, tn_cuda(0), meshes));
    device_pass(ranks, "-train_meshes", argument, 200);
}

static void test_two_ranks(void **state) {
    (void)state;
    expect_engine("staged", 2, meshes_of_two);
}

static void test_four_ranks(void **state) {
    (void)state;
    expect_engine("staged", 4, meshes_of_four);
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv, bodies, sizeof(bodies) / sizeof(bodies[0]))) {
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_four_ranks),
    };
    return cmocka_run_group_tests_name("meshes of devices", tests, device_set_up, temp_clean);
}
