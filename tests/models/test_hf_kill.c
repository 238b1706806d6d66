/* A process that saves a model's folder is killed at each of its calls that
 * change files, and finds the disk full: what is there is the model before, the
 * new one, or none at all. */
#include "tern/sys/tensor.h"
#include "tern/tern.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/kill_at.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- Models whose every element is one number ------------------------------------------------ */

static bool fill_entry(const tn_entry *entry, void *user) {
    float *at = tn_data_mut(entry->stored);
    for (int64_t i = 0; i < tn_count(entry->stored); i++) {
        at[i] = *(float *)user;
    }
    return true;
}

static bool compare_entry(const tn_entry *entry, void *user) {
    const float *at = tn_data(entry->stored);
    float *number = user; /* 0: not yet known */
    for (int64_t i = 0; i < tn_count(entry->stored); i++) {
        *number = *number == 0 ? at[i] : *number;
        assert_true(at[i] == *number);
    }
    return true;
}

static tn_status save_number(float number, tn_lm_save_options options) {
    tn_gpt m;
    tn_gpt_init(&m, (tn_gpt_options){.vocab = 5,
                                     .context = 4,
                                     .layers = 1,
                                     .heads = 1,
                                     .width = 4,
                                     .bias = true,
                                     .activation = TN_ACT_GELU_TANH});
    tn_module_each(&m, (tn_walk){0}, fill_entry, &number);
    tn_status status = tn_lm_save_with(&m, temp_path("folder"), options);
    tn_module_finish(&m);
    return status;
}

/* The number of the model that is there; 0: there is no config, and so no
 * model. */
static float saved_number(void) {
    if (access(temp_path("folder/config.json"), F_OK) != 0) {
        assert_null(tn_lm_load(temp_path("folder"), tn_lm_load_defaults()));
        tn_error_clear();
        return 0;
    }
    float number = 0;
    tn_module *m = tn_lm_load(temp_path("folder"), tn_lm_load_defaults());
    assert_non_null(m);
    tn_module_each(m, (tn_walk){0}, compare_entry, &number);
    tn_lm_free(m);
    return number;
}

static const tn_lm_save_options one = {.max_part_bytes = 5000}, parts = {.max_part_bytes = 300},
                                plain = {.max_part_bytes = 5000, .plain = true};

/* ---- Killed ---------------------------------------------------------------------------------- */

enum { OLD = 1, NEW = 2 };

/* Saves the new model over the old one and dies at the n-th call; false: it
 * lived. */
static bool save_and_die(tn_lm_save_options options, int n) {
    int status;
    pid_t child = fork();
    assert_int_not_equal(child, -1);
    if (child == 0) {
        kill_at_call = n;
        _exit(save_number(NEW, options) == TN_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
        assert_int_equal(WEXITSTATUS(status), 0);
        return false;
    }
    assert_int_equal(WTERMSIG(status), SIGKILL);
    return true;
}

/* seen[number]: how often each of 0, OLD and NEW was left. */
static void kill_everywhere(tn_lm_save_options before, tn_lm_save_options after, int seen[3]) {
    bool killed = true;
    for (int n = 1; killed; n++) {
        assert_int_equal(save_number(OLD, before), TN_OK); /* over what the last one left */
        assert_true(saved_number() == OLD);
        killed = save_and_die(after, n);
        int left = (int)saved_number();
        seen[left] += killed;
        assert_true(killed || left == NEW);
    }
    assert_true(seen[OLD] > 0);
}

static void killed_at_every_call(void **state) {
    (void)state;
    const tn_lm_save_options ways[] = {one, parts, plain};
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            int seen[3] = {0};
            kill_everywhere(ways[from], ways[to], seen);
            if (from == to && to != 1) {
                assert_int_equal(seen[0], 0); /* one file that takes the other's place */
                assert_true(seen[NEW] > 0);
            }
        }
    }
}

/* ---- A full disk ----------------------------------------------------------------------------- */

static rlim_t limit_files(rlim_t most) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = most;
    setrlimit(RLIMIT_FSIZE, &limit);
    return before;
}

/* The config or the weights do not fit. */
static void full_disk(void **state) {
    (void)state;
    static const rlim_t sizes[] = {1, 1000};
    const tn_lm_save_options ways[] = {one, parts, plain};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(save_number(OLD, one), TN_OK);
        rlim_t before = limit_files(sizes[i / 3]);
        tn_status status = save_number(NEW, ways[i % 3]);
        limit_files(before);
        assert_int_equal(status, TN_EIO);
        assert_error(TN_EIO, "File too large");
        assert_true(saved_number() == OLD);
        assert_int_not_equal(access(temp_path("folder/weights.tmp"), F_OK), 0);
        assert_int_not_equal(access(temp_path("folder/config.json.tmp"), F_OK), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(killed_at_every_call, temp_clean),
        cmocka_unit_test_teardown(full_disk, temp_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
