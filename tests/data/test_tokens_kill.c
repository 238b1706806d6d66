/* A process that makes tokens is killed at each of its calls that change files, and so is another
 * one after it, with other options or the same. There are always only whole shards, and a
 * tokens.json that says whether they are complete; in the end they are those of an undisturbed run,
 * and with the same options those that were there are still the same files.
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
    tn_tokens_options o = TN_WITH(tn_tokens, .val = 0.2, .threads = 2,
                                  .shard_bytes = which == 0   ? 900
                                                 : which == 1 ? 1200
                                                              : 16000,
                                  .seed = (uint64_t)which);
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
    if (!is_there("out/tokens.json")) { return -1; }
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
    for (int i = 0; i < 80; i++) {
        char name[64];
        snprintf(name, sizeof(name), names[i % 2], i / 2);
        if (!is_there(name)) { continue; }
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
    assert_true(temp_same_folders(temp_path("reference"), temp_path("out")) >= 5);
}

/* Texts, and what an undisturbed run makes of them. */
static void make_reference(int documents, int which) {
    small_write("#version: 0.2\n" SMALL_MERGES);
    FILE *f = fopen(temp_path("in.jsonl"), "wb");
    assert_non_null(f);
    for (int i = 0; i < documents; i++) {
        fprintf(f, "{\"text\": \"%d hello hello\"}\n", i);
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(make_in_child(0, which), DONE);
    look_at_folder();
    assert_int_equal(rename(temp_path("out"), temp_path("reference")), 0);
}

TEST_WITH(test_killed_anywhere, NULL, temp_clean) {
    make_reference(300, 1);
    int kills = 0;
    for (int n = 1;; n++) {
        temp_remove(temp_path("out"));
        if (make_in_child(n, 0) == DONE) { break; /* it has fewer calls */ }
        look_at_folder();
        bool done = shards_said() >= 0; /* killed after its last call that matters */
        int then = make_in_child(n, 1);
        look_at_folder();
        assert_int_equal(then == THERE_ALREADY, done);
        then = make_in_child(0, 1);
        assert_true(then == DONE || then == THERE_ALREADY);
        assert_true(shards_said() > 0);
        if (!done) { same_as_reference(); }
        kills++;
    }
    fprintf(stderr, "%d kills\n", kills);
    assert_true(kills > 20);
}

/* ---- Going on -------------------------------------------------------------------------------- */

enum { MOST_SHARDS = 32 };

/* When each shard was written, and the number of shards; zeros: it is not there. */
static int look_at_times(struct timespec *times) {
    int count = 0;
    for (int i = 0; i < MOST_SHARDS; i++) {
        char name[64];
        struct stat about;
        snprintf(name, sizeof(name), "out/%s_%06d.bin", i % 2 ? "val" : "train", i / 2);
        bool there = stat(temp_path(name), &about) == 0;
        times[i] = there ? about.st_mtim : (struct timespec){0};
        count += there;
    }
    return count;
}

static void same_files(const struct timespec *before) {
    struct timespec now[MOST_SHARDS];
    look_at_times(now);
    for (int i = 0; i < MOST_SHARDS; i++) {
        if (before[i].tv_sec) { assert_memory_equal(&before[i], &now[i], sizeof(now[i])); }
    }
}

/* Several batches of documents, of which the splits' shards end in different ones. Every fifth call
 * is enough: a shard takes a number of calls that 5 does not divide. */
TEST_WITH(test_goes_on, NULL, temp_clean) {
    make_reference(9000, 2);
    int most = 0, compared = 0;
    for (int n = 1;; n += 5) {
        struct timespec first[MOST_SHARDS], second[MOST_SHARDS];
        temp_remove(temp_path("out"));
        if (make_in_child(n, 2) == DONE) { break; }
        look_at_folder();
        if (shards_said() >= 0) { continue; /* killed after its last call that matters */ }
        int count = look_at_times(first);
        most = count > most ? count : most;
        if (make_in_child(n, 2) == KILLED && shards_said() < 0) {
            look_at_folder();
            assert_true(look_at_times(second) >= count);
            assert_int_equal(make_in_child(0, 2), DONE);
            same_files(second);
        }
        look_at_folder();
        same_files(first);
        same_as_reference();
        compared++;
    }
    fprintf(stderr, "%d shards at most, %d times\n", most, compared);
    assert_true(most >= 8 && compared >= 10);
}

int main(int argc, char **argv) {
    if (argc == 4) {
        kill_at_call = atoi(argv[2]);
        tn_status status = make_tokens(argv[1], atoi(argv[3]));
        return status == TN_OK ? DONE : status == TN_ESTATE ? THERE_ALREADY : 9;
    }
    return tests_run(NULL, NULL);
}
