/* A process that makes tokens is killed at each of its calls that change files, and so is another
 * one after it, with other options. There are always only whole shards, and a tokens.json that says
 * whether they are complete; in the end they are those of an undisturbed run.
 *
 * The killed ones are this program again: `test_data_tokens_kill FOLDER NUMBER WHICH`. */
#include "tern/tokenizer.h"

#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/data/small_tokenizer.h"
#include "tests/support/kill_at.h"

extern char **environ;

static tn_status make_tokens(const char *folder, int which) {
    char in[512], out[512];
    snprintf(in, sizeof(in), "%s/in.jsonl", folder);
    snprintf(out, sizeof(out), "%s/out", folder);
    const char *path = in;
    tn_tokens_options o = tn_tokens_defaults();
    o.val = 0.2;
    o.threads = 2;
    o.shard_tokens = which == 0 ? 300 : 400;
    o.seed = (uint64_t)which;
    tn_tokenizer *t = tn_tokenizer_load(folder);
    tn_status status = t ? tn_tokens_make(t, &path, 1, out, o, NULL) : tn_error();
    tn_tokenizer_free(t);
    return status;
}

enum { DONE, THERE_ALREADY, KILLED };

/* How a process ends that is killed at its n-th call, if it has so many. */
static int make_in_child(int n, int which) {
    char folder[512], number[16], what[16], program[] = "/proc/self/exe";
    snprintf(folder, sizeof(folder), "%s", temp_path("."));
    snprintf(number, sizeof(number), "%d", n);
    snprintf(what, sizeof(what), "%d", which);
    char *argv[] = {program, folder, number, what, NULL};
    pid_t child;
    int status;
    assert_int_equal(posix_spawn(&child, program, NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return KILLED;
    }
    assert_true(WEXITSTATUS(status) == DONE || WEXITSTATUS(status) == THERE_ALREADY);
    return WEXITSTATUS(status);
}

static bool is_there(const char *name) {
    return access(temp_path(name), F_OK) == 0;
}

/* The number of shards in a tokens.json that says that they are complete; otherwise -1. */
static int shards_said(void) {
    size_t bytes;
    if (!is_there("out/tokens.json")) {
        return -1;
    }
    char *json = (char *)temp_read(temp_path("out/tokens.json"), &bytes);
    int said = strstr(json, "\"finished\": true") ? 0 : -1;
    for (const char *at = json; said >= 0 && (at = strstr(at, "\"shards\": "));) {
        at += strlen("\"shards\": ");
        said += atoi(at);
    }
    free(json);
    return said;
}

/* Each shard in the folder is whole, and tokens.json says "finished" only if all are there. */
static void look_at_folder(void) {
    static const char *const names[] = {"out/train_%06d.bin", "out/val_%06d.bin"};
    int shards = 0, said = shards_said();
    for (int i = 0; i < 20; i++) {
        char name[64];
        snprintf(name, sizeof(name), names[i % 2], i / 2);
        if (!is_there(name)) {
            continue;
        }
        size_t bytes;
        unsigned char *file = temp_read(temp_path(name), &bytes);
        assert_true(bytes > 1024);
        assert_int_equal(file[8] | file[9] << 8, (bytes - 1024) / 2);
        free(file);
        shards++;
    }
    assert_true(shards == 0 || is_there("out/tokens.json"));
    assert_true(said < 0 || said == shards);
}

static void same_as_reference(void) {
    static const char *const names[] = {"train_000000.bin", "train_000001.bin", "train_000002.bin",
                                        "train_000003.bin", "train_000004.bin", "val_000000.bin",
                                        "val_000001.bin",   "tokens.json"};
    int same = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char reference[64], out[64];
        snprintf(reference, sizeof(reference), "reference/%s", names[i]);
        snprintf(out, sizeof(out), "out/%s", names[i]);
        assert_int_equal(is_there(reference), is_there(out));
        if (is_there(out)) {
            temp_same(temp_path(reference), temp_path(out));
            same++;
        }
    }
    assert_true(same >= 5);
    DIR *folder = opendir(temp_path("out"));
    assert_non_null(folder);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        found += entry->d_name[0] != '.';
    }
    closedir(folder);
    assert_int_equal(found, same); /* and nothing else */
}

static void test_killed_anywhere(void **state) {
    (void)state;
    small_write("#version: 0.2\n" SMALL_MERGES);
    FILE *f = fopen(temp_path("in.jsonl"), "wb");
    assert_non_null(f);
    for (int i = 0; i < 300; i++) {
        fprintf(f, "{\"text\": \"%d hello hello\"}\n", i);
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(make_in_child(0, 1), DONE);
    look_at_folder();
    assert_int_equal(rename(temp_path("out"), temp_path("reference")), 0);
    int kills = 0;
    for (int n = 1;; n++) {
        temp_remove(temp_path("out"));
        if (make_in_child(n, 0) == DONE) {
            break; /* it has fewer calls */
        }
        look_at_folder();
        bool done = shards_said() >= 0; /* killed after its last call that matters */
        int then = make_in_child(n, 1);
        look_at_folder();
        assert_int_equal(then == THERE_ALREADY, done);
        then = make_in_child(0, 1);
        assert_true(then == DONE || then == THERE_ALREADY);
        assert_true(shards_said() > 0);
        if (!done) {
            same_as_reference();
        }
        kills++;
    }
    fprintf(stderr, "%d kills\n", kills);
    assert_true(kills > 20);
}

int main(int argc, char **argv) {
    if (argc == 4) {
        kill_at_call = atoi(argv[2]);
        tn_status status = make_tokens(argv[1], atoi(argv[3]));
        return status == TN_OK ? DONE : status == TN_ESTATE ? THERE_ALREADY : 9;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_anywhere)};
    return cmocka_run_group_tests(tests, NULL, temp_clean);
}
