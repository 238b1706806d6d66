/* Where flight records are written, in folders that strangers have tampered with. */
#include "distributed/group/group.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { STRANGER = 65534 };

static char logged[2048]; /* the last warning */

static void note_warning(tn_log_level level, const char *message, void *user) {
    if (level == TN_LOG_WARN) { snprintf(logged, sizeof(logged), "%s", message); }
}

/* Saves a record; the log says where it is, or why it was not written. */
static void save_record(int rank) {
    logged[0] = 0;
    tn__flight_save(rank, "a test");
}

static void assert_refused(int rank, const char *path, const char *why) {
    save_record(rank);
    assert_contains(logged, "nothing is written");
    assert_contains(logged, path);
    assert_contains(logged, why);
}

/* This rank's record is a regular file that only this user can access. */
static void expect_record(const char *path) {
    struct stat about;
    size_t bytes;
    assert_contains(logged, path);
    assert_int_equal(lstat(path, &about), 0);
    assert_true(S_ISREG(about.st_mode));
    assert_int_equal(about.st_mode & 07777, 0600);
    assert_int_equal(about.st_uid, geteuid());
    char *text = (char *)temp_read(path, &bytes);
    assert_int_equal(strncmp(text, "a test\n", 7), 0);
    free(text);
}

static void expect_contents(const char *path, const char *wanted) {
    size_t bytes;
    char *text = (char *)temp_read(path, &bytes);
    assert_string_equal(text, wanted);
    free(text);
}

static int begin_test(void **state) {
    temp_path("");
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("TMPDIR");
    tn_log_to(note_warning, TN_LOG_WARN, NULL);
    return 0;
}

static int end_test(void **state) {
    tn_log_to(NULL, TN_LOG_ERROR, NULL);
    return temp_clean(state);
}

static bool is_root(void) {
    if (geteuid() != 0) { print_message("only root can give files to another user\n"); }
    return geteuid() == 0;
}

/* ---- A folder that the user named ------------------------------------------------------------ */

TEST_WITH(test_named, begin_test, end_test) {
    save_record(3);
    expect_record(temp_path("tern-flight-3.txt"));
    temp_write(temp_path("tern-flight-3.txt"), "of yesterday", 12);
    save_record(3);
    expect_record(temp_path("tern-flight-3.txt"));
    setenv("TERN_FLIGHT_DIR", "/nowhere/at/all", 1);
    assert_refused(3, "/nowhere/at/all", "No such file");
}

TEST_WITH(test_symlink, begin_test, end_test) {
    char target[512];
    temp_write(temp_path("victim"), "precious", 8);
    assert_int_equal(symlink(temp_path("victim"), temp_path("tern-flight-0.txt")), 0);
    assert_refused(0, "tern-flight-0.txt", "not this user's record");
    expect_contents(temp_path("victim"), "precious");
    assert_true(readlink(temp_path("tern-flight-0.txt"), target, sizeof(target)) > 0);
    assert_int_equal(symlink(temp_path("new"), temp_path("tern-flight-1.txt")), 0);
    assert_refused(1, "tern-flight-1.txt", "not this user's record");
    assert_int_equal(access(temp_path("new"), F_OK), -1);
}

/* A hard link is replaced, and the file's other name keeps its contents. */
TEST_WITH(test_hard_link, begin_test, end_test) {
    temp_write(temp_path("victim"), "precious", 8);
    assert_int_equal(link(temp_path("victim"), temp_path("tern-flight-0.txt")), 0);
    save_record(0);
    expect_record(temp_path("tern-flight-0.txt"));
    expect_contents(temp_path("victim"), "precious");
}

/* Without a reader, open would block; with a full pipe, write would. */
TEST_WITH(test_fifo, begin_test, end_test) {
    struct stat about;
    const char *path = temp_path("tern-flight-0.txt");
    char page[4096] = {0};
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_refused(0, path, "not this user's record");
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    while (write(fd, page, sizeof(page)) > 0) {}
    assert_refused(0, path, "not this user's record");
    close(fd);
    assert_int_equal(lstat(path, &about), 0);
    assert_true(S_ISFIFO(about.st_mode));
}

TEST_WITH(test_file_of_another_user, begin_test, end_test) {
    const char *path = temp_path("tern-flight-0.txt");
    if (!is_root()) { skip(); }
    temp_write(path, "theirs", 6);
    assert_int_equal(chown(path, STRANGER, STRANGER), 0);
    assert_refused(0, path, "not this user's record");
    expect_contents(path, "theirs");
}

/* ---- A folder of the user's own -------------------------------------------------------------- */

/* The folder of records when TMPDIR is the test's folder. */
static const char *own_folder(void) {
    char name[32];
    snprintf(name, sizeof(name), "tern-%u", (unsigned)geteuid());
    unsetenv("TERN_FLIGHT_DIR");
    setenv("TMPDIR", temp_folder, 1);
    return temp_path(name);
}

static const char *record_in(const char *folder, int rank) {
    static char path[640];
    snprintf(path, sizeof(path), "%s/tern-flight-%d-%d.txt", folder, rank, (int)getpid());
    return path;
}

static void expect_and_remove(const char *folder, int rank) {
    struct stat about;
    expect_record(record_in(folder, rank));
    assert_int_equal(lstat(folder, &about), 0);
    assert_true(S_ISDIR(about.st_mode));
    assert_int_equal(about.st_mode & 07777, 0700);
    assert_int_equal(unlink(record_in(folder, rank)), 0);
    assert_int_equal(rmdir(folder), 0);
}

TEST_WITH(test_own, begin_test, end_test) {
    const char *folder = own_folder();
    mode_t before = umask(0);
    save_record(2);
    expect_and_remove(folder, 2);
    assert_int_equal(mkdir(folder, 0700), 0); /* if it exists already */
    save_record(2);
    umask(before);
    expect_and_remove(folder, 2);
}

TEST_WITH(test_runtime_folder, begin_test, end_test) {
    const char *folder = own_folder(), *runtime = temp_path("tern");
    setenv("XDG_RUNTIME_DIR", temp_folder, 1);
    save_record(1);
    expect_and_remove(runtime, 1);
    assert_int_equal(mkdir(runtime, 0700), 0);
    assert_int_equal(chmod(runtime, 0777), 0);
    save_record(1);
    assert_int_equal(rmdir(runtime), 0); /* nothing was written there */
    expect_and_remove(folder, 1);
    setenv("XDG_RUNTIME_DIR", "/nowhere/at/all", 1);
    save_record(1);
    expect_and_remove(folder, 1);
}

TEST_WITH(test_folder_that_others_may_use, begin_test, end_test) {
    const char *folder = own_folder();
    static const mode_t modes[] = {0777, 01777, 0770, 0701};
    assert_int_equal(mkdir(folder, 0700), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(chmod(folder, modes[i]), 0);
        assert_refused(0, folder, "a folder that others may use");
    }
    assert_int_equal(rmdir(folder), 0);
}

TEST_WITH(test_folder_of_another_user, begin_test, end_test) {
    const char *folder = own_folder();
    if (!is_root()) { skip(); }
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chown(folder, STRANGER, STRANGER), 0);
    assert_refused(0, folder, "a folder of another user");
    assert_int_equal(rmdir(folder), 0);
}

TEST_WITH(test_folder_that_is_none, begin_test, end_test) {
    const char *folder = own_folder(), *victim = temp_path("victim");
    assert_int_equal(mkdir(victim, 0700), 0);
    assert_int_equal(symlink(victim, folder), 0);
    assert_refused(0, folder, "not a folder, or a link to one");
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(rmdir(victim), 0); /* nothing was written there */
    assert_int_equal(mkfifo(folder, 0600), 0);
    assert_refused(0, folder, "not a folder, or a link to one");
}
