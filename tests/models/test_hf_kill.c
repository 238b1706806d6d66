/* A process that saves a model's folder is killed at each call that changes files; each such call
 * fails, each allocation fails, the disk is full, or folders are in the way. In each case the
 * folder has the old model or the new one, whole. */
#include "core/allocator.h"
#include "tern/sys/tensor.h"
#include "tern/tern.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define KILL_AT_NAMES
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
    tn_gpt_init(&m, TN_WITH(tn_gpt, .vocab = 5, .context = 4, .layers = 1, .heads = 1, .width = 4));
    tn_module_each(&m, (tn_walk){0}, fill_entry, &number);
    tn_status status = tn_lm_save_with(&m, temp_path("folder"), options);
    tn_module_finish(&m);
    return status;
}

/* The number of the saved model. */
static float saved_number(void) {
    float number = 0;
    tn_module *m = tn_lm_load(temp_path("folder"), tn_lm_load_defaults());
    if (!m) { fail_msg("%s", tn_error_message()); }
    tn_module_each(m, (tn_walk){0}, compare_entry, &number);
    tn_module_free(m);
    return number;
}

static bool folder_has(const char *name) {
    char path[128];
    snprintf(path, sizeof(path), "folder/%s", name);
    return access(temp_path(path), F_OK) == 0;
}

enum { OLD = 1, NEW = 2 };

/* In one file, in several, and in Tern's own layout. */
static const tn_lm_save_options ways[] = {
    {.max_part_bytes = 5000, .from_defaults = true},
    {.max_part_bytes = 300, .from_defaults = true},
    {.max_part_bytes = 5000, .plain = true, .from_defaults = true}};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* ---- Tokenizers, whose files have the model's number ----------------------------------------- */

static void make_words(void) {
    mkdir(temp_path("words"), 0777);
    for (int number = OLD; number <= NEW; number++) {
        char name[64], text[2] = {(char)('0' + number), 0};
        snprintf(name, sizeof(name), "words/%d", number);
        mkdir(temp_path(name), 0777);
        snprintf(name, sizeof(name), "words/%d/vocab.json", number);
        temp_write(temp_path(name), text, 1);
        snprintf(name, sizeof(name), "words/%d/merges.txt", number);
        temp_write(temp_path(name), text, 1);
    }
}

static tn_status save_words(int number, tn_lm_save_options options) {
    char name[64];
    snprintf(name, sizeof(name), "words/%d", number);
    char *folder = strdup(temp_path(name));
    options.tokenizer = folder;
    tn_status status = save_number((float)number, options);
    free(folder);
    return status;
}

/* The number of the saved model, whose folder has its tokenizer's files. */
static int saved_with_words(void) {
    static const char *const names[] = {"vocab.json", "merges.txt"};
    int number = (int)saved_number();
    for (int i = 0; i < 2; i++) {
        char path[64];
        size_t bytes;
        snprintf(path, sizeof(path), "folder/%s%s", folder_has("config.json") ? "" : "weights.tmp/",
                 names[i]);
        unsigned char *text = temp_read(temp_path(path), &bytes);
        assert_true(bytes == 1 && text[0] == '0' + number);
        free(text);
    }
    return number;
}

/* ---- Killed ---------------------------------------------------------------------------------- */

/* Saves the new model over the old one and is killed at the n-th call; false: it finished first. */
static bool save_and_die(tn_lm_save_options options, int n) {
    int status;
    pid_t child = fork();
    assert_int_not_equal(child, -1);
    if (child == 0) {
        kill_at_call = n;
        _exit(save_words(NEW, options) == TN_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
        assert_int_equal(WEXITSTATUS(status), 0);
        return false;
    }
    assert_int_equal(WTERMSIG(status), SIGKILL);
    return true;
}

/* Saves a model with options `after` over one with `before`, which is saved over what the last kill
 * left. */
static void kill_everywhere(tn_lm_save_options before, tn_lm_save_options after) {
    bool killed = true;
    int seen[3] = {0};
    make_words();
    for (int n = 1; killed; n++) {
        assert_int_equal(save_words(OLD, before), TN_OK);
        assert_true(saved_with_words() == OLD && folder_has("config.json") &&
                    !folder_has("weights.tmp"));
        killed = save_and_die(after, n);
        int left = saved_with_words();
        assert_true(left == NEW || (killed && left == OLD));
        seen[left] += killed;
    }
    assert_true(seen[OLD] > 0 && seen[NEW] > 0);
}

TEST_WITH(killed_at_every_call, NULL, temp_clean) {
    kill_everywhere(ways[0], ways[0]);
    kill_everywhere(ways[0], ways[1]);
    kill_everywhere(ways[1], ways[2]);
}

TEST_WITH(killed_without_second_names, NULL, temp_clean) {
    no_second_names = true;
    kill_everywhere(ways[0], ways[1]);
    no_second_names = false;
}

/* ---- Failing --------------------------------------------------------------------------------- */

/* After a save of the new model over the old one that may have failed; the next one does not. */
static void expect_old_or_new(tn_status status, tn_lm_save_options after) {
    assert_int_equal(status, tn_error());
    tn_error_clear();
    float left = saved_number();
    assert_true(left == NEW || (status != TN_OK && left == OLD));
    assert_int_equal(save_number(NEW, after), TN_OK);
    assert_true(saved_number() == NEW && !folder_has("weights.tmp") &&
                !folder_has("config.json.tmp"));
}

TEST_WITH(every_call_fails, NULL, temp_clean) {
    for (int i = 0; i < WAYS; i++) {
        bool failed = true;
        for (int n = 1; failed; n++) {
            assert_int_equal(save_number(OLD, ways[(i + 1) % WAYS]), TN_OK);
            fail_at_call = n;
            tn_status status = save_number(NEW, ways[i]);
            failed = fail_at_call <= 0;
            fail_at_call = 0;
            expect_old_or_new(status, ways[i]);
        }
    }
}

TEST_WITH(every_allocation_fails, NULL, temp_clean) {
    bool failed = true;
    for (int n = 0; failed; n++) {
        assert_int_equal(save_number(OLD, ways[0]), TN_OK);
        tn__alloc_fail_at(n);
        tn_status status = save_number(NEW, ways[1]);
        failed = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        expect_old_or_new(status, ways[1]);
    }
}

/* A tokenizer that cannot be copied changes nothing. */
TEST_WITH(words_that_are_not_there, NULL, temp_clean) {
    make_words();
    assert_int_equal(save_words(OLD, ways[0]), TN_OK);
    assert_fails(save_words(3, ways[0]), TN_EIO, "words/3: No such file");
    assert_int_equal(unlink(temp_path("words/2/merges.txt")), 0);
    assert_int_equal(mkdir(temp_path("words/2/merges.txt"), 0777), 0);
    assert_fails(save_words(NEW, ways[0]), TN_EIO, "words/2/merges.txt is a folder");
    assert_true(saved_with_words() == OLD && folder_has("config.json"));
    assert_false(folder_has("weights.tmp"));
}

/* Folders with the names of files that a save writes or deletes: an error that names them. */
TEST_WITH(folders_in_the_way, NULL, temp_clean) {
    static const char *const names[] = {"config.json.tmp", "weights.tmp/folder",
                                        "model-00001-of-00007.safetensors"};
    for (int i = 0; i < 3; i++) {
        char path[128];
        assert_int_equal(save_number(OLD, ways[0]), TN_OK);
        snprintf(path, sizeof(path), "folder/%s", names[i]);
        mkdir(temp_path("folder/weights.tmp"), 0777);
        mkdir(temp_path(path), 0777);
        tn_status status = save_number(NEW, ways[1]);
        assert_int_equal(status, TN_EIO);
        assert_error(status, i == 1 ? "weights.tmp" : names[i]);
        assert_true(saved_number() == (i < 2 ? OLD : NEW));
        assert_int_equal(rmdir(temp_path(path)), 0);
        assert_int_equal(save_number(NEW, ways[1]), TN_OK);
        assert_true(saved_number() == NEW && !folder_has("weights.tmp"));
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
TEST_WITH(full_disk, NULL, temp_clean) {
    static const rlim_t sizes[] = {1, 1000};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(save_number(OLD, ways[0]), TN_OK);
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
