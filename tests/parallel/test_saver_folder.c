/* The folder of checkpoints in parts: which steps it keeps, which run they belong to, and who locks
 * it. Ranks are threads. */
#include "tests/support/test.h"

#include <sys/stat.h>

#include "core/folder.h"
#include "tests/parallel/parts_run.h"
#include "tests/support/temp.h"

/* ---- Steps ----------------------------------------------------------------------------------- */

static bool count_names(const char *name, void *user) {
    ++*(int *)user;
    return true;
}

static int names_in(const char *folder) {
    int count = 0;
    assert_true(tn__folder_each(folder, count_names, &count, "test"));
    return count;
}

static bool is_there(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void save_steps(tn_group *world, void *user) {
    const char *folder = user;
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    parts_run_saver(&r, folder, TN_WITH(tn_saver, .keep = 3, .timeout = 120));
    for (r.c.step = 10; r.c.step <= 70; r.c.step += 10) {
        parts_run_values(&r, (uint64_t)r.c.step, false);
        must(tn_saver_save(r.saver, &r.c) == TN_OK);
    }
    r.c.step = 70; /* again: it is replaced */
    parts_run_values(&r, 71, false);
    must(tn_saver_save(r.saver, &r.c) == TN_OK);
    parts_run_close(&r);
}

TEST(some_steps_stay) {
    const char *folder = temp_path("steps");
    assert_true(tn__folder_make(folder, "test"));
    const char *dead = temp_path("steps/step-000005.tmp"), *other = temp_path("steps/notes.tmp");
    assert_true(tn__folder_make(dead, "test") && tn__folder_make(other, "test"));
    temp_write(temp_path("steps/step-000005.tmp/rank-00000.safetensors"), "half", 4);
    run_ok(3, save_steps, folder);
    assert_true(is_there(folder, "step-000050") && is_there(folder, "step-000060"));
    assert_true(is_there(folder, "step-000070") && is_there(folder, "lock"));
    assert_true(is_there(folder, "notes.tmp")); /* not ours */
    assert_int_equal(names_in(folder), 5);
    assert_int_equal(names_in(temp_path("steps/step-000070")), 4);
}

/* A run that starts over in another run's folder: its own steps are kept, and so are the
 * other's. */
static void save_low_step(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_ODD);
    parts_run_saver(&r, user, TN_WITH(tn_saver, .keep = 1, .timeout = 120));
    for (r.c.step = 2; r.c.step < 4; r.c.step++) {
        must(tn_saver_save(r.saver, &r.c) == TN_OK);
    }
    parts_run_close(&r);
}

TEST(higher_steps_are_another_runs) {
    const char *folder = temp_path("steps");
    run_ok(2, save_low_step, folder);
    assert_true(is_there(folder, "step-000003") && is_there(folder, "step-000070"));
    assert_false(is_there(folder, "step-000002"));
}

/* Step 70 is the second one saved. */
static void load_replaced(tn_group *world, void *user) {
    parts_run r;
    parts_run_begin(&r, world, LIES_WHOLE, user);
    bool found;
    must(tn_saver_load(r.saver, &r.c, &found) == TN_OK && found && r.c.step == 70);
    parts_run_values(&r, 71, true);
    parts_run_close(&r);
}

TEST(a_step_is_replaced) {
    run_ok(2, load_replaced, temp_path("steps"));
}

/* Something that the user put into a step's folder is not removed with the step, and prevents no
 * save: neither the one that replaces the step, nor those of the next job. */
TEST(folders_in_steps_stay) {
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    tn_checkpoint c = r.c;
    const char *folder = temp_path("kept");
    c.step = 1;
    for (int job = 0; job < 3; job++) {
        tn_saver *saver = tn_saver_new(NULL, folder, patient_options(false));
        c.step += job == 2;
        assert_int_equal(tn_saver_save(saver, &c), TN_OK);
        if (job == 0) {
            assert_true(tn__folder_make(temp_path("kept/step-000001/ours"), "test"));
            assert_int_equal(tn_saver_save(saver, &c), TN_OK);
            c.step = 2;
        }
        tn_saver_free(saver);
    }
    assert_true(is_there(folder, "step-000001.tmp/ours"));
    assert_true(is_there(folder, "step-000003") && is_there(folder, "step-000002"));
    parts_run_close(&r);
}

/* ---- One job at a time ----------------------------------------------------------------------- */

TEST(one_job_at_a_time) {
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    tn_checkpoint c = r.c;
    const char *folder = temp_path("locked");
    tn_saver *first = tn_saver_new(NULL, folder, patient_options(false));
    tn_saver *second = tn_saver_new(NULL, folder, patient_options(false));
    bool found;
    c.step = 1;
    assert_int_equal(tn_saver_save(first, &c), TN_OK);
    assert_fails(tn_saver_save(second, &c), TN_EIO, "another job runs in");
    assert_int_equal(tn_saver_load(second, &c, &found), TN_OK);
    assert_true(found);
    tn_saver_free(first);
    c.step = 2;
    assert_int_equal(tn_saver_save(second, &c), TN_OK);
    tn_saver_free(second);
    parts_run_close(&r);
}

/* Another descriptor of the lock, as a forked child has it. */
static int lock_again(const char *folder) {
    char path[512];
    struct stat lock, open_file;
    snprintf(path, sizeof(path), "%s/lock", folder);
    assert_int_equal(stat(path, &lock), 0);
    for (int fd = 3; fd < 1024; fd++) {
        if (fstat(fd, &open_file) == 0 && open_file.st_dev == lock.st_dev &&
            open_file.st_ino == lock.st_ino) {
            return dup(fd);
        }
    }
    return -1;
}

/* A freed saver holds no lock, even if a child has inherited its descriptor. */
TEST(children_keep_no_lock) {
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    tn_checkpoint c = r.c;
    const char *folder = temp_path("inherited");
    tn_saver *first = tn_saver_new(NULL, folder, patient_options(false));
    assert_int_equal(tn_saver_save(first, &c), TN_OK);
    int again = lock_again(folder);
    assert_true(again >= 0);
    tn_saver_free(first);
    tn_saver *second = tn_saver_new(NULL, folder, patient_options(false));
    assert_int_equal(tn_saver_save(second, &c), TN_OK);
    tn_saver_free(second);
    close(again);
    parts_run_close(&r);
}
