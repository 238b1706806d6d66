/* Sharding on devices, over the emulator: the bits of one rank that accumulates, and what is on the
 * device. */

#include "device_ranks.h"
#include "tests/parallel/memory_formula.h"
#include "tests/support/test.h"

/* ---- For the ranks --------------------------------------------------------------------------- */

PLAIN_RANK(match_accumulation) {
    tn_group *world = device_join(argument, 100);
    rank_assert(world != NULL);
    /* of several micro-batches products continue gradients there, in other bits than sums */
    rank_assert(train_matrix_agrees(world, 2, true));
    return device_leave();
}

/* Parts, gradients and states on the CPU, and stepped there. */
static bool stored_on_cpu(const tn_entry *entry, void *user) {
    *(bool *)user &=
        tn_device_of(entry->stored).kind == TN_CPU && tn_device_of(*entry->field).kind == TN_CUDA;
    return true;
}

PLAIN_RANK(offload_to_cpu) {
    tn_group *world = device_join(argument, 100);
    rank_assert(world != NULL);
    for (int i = 0; i < 6; i++) {
        train_run run = train_run_of(TRAIN_FSDP, tn_group_size(world));
        run.sharding.offload = true;
        run.sharding.stage = 1 + i % 3;
        run.bf16 = i / 3;
        run.clip = 0.2;
        train_run by_hand = train_oracle(run, NULL);
        train_end alone = train_as_rank(NULL, &by_hand), together = train_as_rank(world, &run);
        rank_assert(train_agrees(&alone, &together, &run, 0));
        free(alone.bits.data);
        free(together.bits.data);
    }
    train_run run = train_run_of(TRAIN_FSDP, tn_group_size(world));
    run.sharding.offload = true;
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    mesh_model m;
    train_model(&m, &run, 1);
    train_groups groups = train_attach(&m, &run, world);
    tn_fsdp_state *s = groups.fsdp;
    train_some(&m, &run, &groups);
    bool good = true;
    tn_module_each(&m, (tn_walk){0}, stored_on_cpu, &good);
    rank_assert(good && tn_error() == TN_OK);
    rank_assert(tn_device_memory(tn_default_device()).allocated - before ==
                tn_fsdp_statistics(s).buffers); /* nothing else stays there */
    tn_module_finish(&m);
    return device_leave();
}

/* The peak memory on the device. */
PLAIN_RANK(measure_peaks) {
    tn_group *world = device_join("staged", 100);
    rank_assert(world != NULL);
    most m = measure_most(world, argument);
    rank_assert(most_is_right(&m));
    return device_leave();
}

/* ---- Tests ----------------------------------------------------------------------------------- */

PLAIN_TEST(test_ranks_are_accumulation) {
    device_pass(2, "match_accumulation", "staged", 200);
    device_pass(3, "match_accumulation", "staged", 200);
}

PLAIN_TEST(test_offload) {
    device_pass(2, "offload_to_cpu", "staged", 200);
}

PLAIN_TEST(test_most_bytes) {
    device_pass(2, "measure_peaks", "3 0 1", 200);
    device_pass(2, "measure_peaks", "3 1 2", 200);
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv)) { return 0; }
    return tests_run(device_set_up, NULL);
}
