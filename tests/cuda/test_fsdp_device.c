/* Sharding on devices, over the emulator: the bits of one rank that accumulates, and what lies on
 * the device. */

#include "device_ranks.h"
#include "tests/parallel/memory_formula.h"
#include "tests/support/test.h"

/* ---- For the ranks --------------------------------------------------------------------------- */

static int tell(tn_group *unused, const char *argument) {
    (void)unused;
    tn_group *world = device_join(argument, 100);
    rank_assert(world != NULL);
    rank_assert(train_matrix_agrees(world, 5));
    return device_leave();
}

/* What lies on the device at most. */
static int peaks(tn_group *unused, const char *argument) {
    (void)unused;
    tn_group *world = device_join("staged", 100);
    rank_assert(world != NULL);
    most m = measure_most(world, argument);
    rank_assert(most_is_right(&m));
    return device_leave();
}

static const rank_entry bodies[] = {{"-tell", tell}, {"-peaks", peaks}};

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_ranks_are_accumulation(void **state) {
    (void)state;
    device_pass(2, "-tell", "staged", 200);
    device_pass(3, "-tell", "staged", 200);
}

static void test_most_bytes(void **state) {
    (void)state;
    device_pass(2, "-peaks", "3 0 1", 200);
    device_pass(2, "-peaks", "3 1 2", 200);
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv, bodies, sizeof(bodies) / sizeof(bodies[0]))) {
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_are_accumulation),
        cmocka_unit_test(test_most_bytes),
    };
    return cmocka_run_group_tests_name("sharding on devices", tests, device_set_up, temp_clean);
}
