/* tn_saver_clear: a run starts over in a folder of checkpoints. */
#include "tests/distributed/rank_check.h"
#include "tests/support/temp.h"

/* Steps of another run, with higher numbers, and a file that is no checkpoint. */
static void leave_checkpoints(tn_saver *s, tn_linear *m, const char *folder, bool first) {
    tn_checkpoint c = {.model = m};
    for (c.step = 98; c.step <= 99; c.step++) {
        CHECK(tn_saver_save(s, &c) == TN_OK);
    }
    CHECK(tn_saver_wait(s) == TN_OK);
    if (first) {
        char path[600];
        snprintf(path, sizeof(path), "%s/weights.safetensors", folder);
        CHECK(tn_save(m, path) == TN_OK);
    }
}

static void starts_over(tn_group *world, void *user) {
    const char *folder = user;
    tn_linear m;
    tn_linear_init(&m, 2, 3, tn_linear_defaults());
    tn_saver *s = tn_saver_new(world, folder, tn_saver_defaults());
    leave_checkpoints(s, &m, folder, tn_group_rank(world) == 0);
    CHECK(tn_barrier(world) == TN_OK);

    tn_checkpoint c = {.model = &m, .step = 1};
    bool found;
    CHECK(tn_saver_clear(s) == TN_OK);
    CHECK(tn_saver_load(s, &c, &found) == TN_OK && !found);
    CHECK(tn_saver_save(s, &c) == TN_OK);
    CHECK(tn_saver_load(s, &c, &found) == TN_OK && found && c.step == 1);
    CHECK(tn_saver_clear(s) == TN_OK && tn_saver_clear(s) == TN_OK); /* an empty folder is fine */
    tn_saver_free(s);
    tn_module_finish(&m);
}

TEST(test_starts_over) {
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        char name[16], path[600];
        snprintf(name, sizeof(name), "run%d", ranks);
        const char *folder = temp_path(name);
        run_ok(ranks, starts_over, folder);
        snprintf(path, sizeof(path), "%s/weights.safetensors", folder);
        assert_int_equal(access(path, F_OK), 0);
        unlink(path);
        snprintf(path, sizeof(path), "%s/lock", folder);
        unlink(path);
        assert_int_equal(rmdir(folder), 0); /* nothing else was left */
    }
}

/* An error on rank 0 is an error on all ranks, and the group still works. */
static void cannot_clear(tn_group *world, void *user) {
    tn_saver *s = tn_saver_new(world, user, tn_saver_defaults());
    CHECK(tn_saver_clear(s) == TN_EIO && failed_with(TN_EIO, ""));
    CHECK(tn_barrier(world) == TN_OK);
    tn_saver_free(s);
}

TEST(test_cannot_clear) {
    const char *path = temp_path("a_file");
    temp_write(path, "x", 1);
    run_ok(2, cannot_clear, path);
}
