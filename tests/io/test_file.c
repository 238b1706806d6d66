/* Writing whole or not at all: a full disk, no permission, leftovers, several writers. */
#include "tern/io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

static void expect_contents(const char *path, const char *text) {
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    assert_string_equal((char *)data, text);
    free(data);
}

PLAIN_TEST(test_writes_and_replaces) {
    const char *path = temp_path("file");
    assert_int_equal(tn_write_file("one", 3, path), TN_OK);
    expect_contents(path, "one");
    assert_int_equal(tn_write_file("three", 5, path), TN_OK);
    expect_contents(path, "three");
    assert_int_equal(tn_write_file("", 0, path), TN_OK);
    expect_contents(path, "");
    assert_int_equal(temp_count(), 1);
    assert_int_equal(chdir(temp_folder), 0);
    assert_int_equal(tn_write_file("x", 1, "here"), TN_OK); /* a name without a folder */
    assert_int_equal(unlink("here"), 0);
    assert_int_equal(chdir("/"), 0);
}

/* A limit on file sizes acts as a disk that is full after so many bytes. */
TEST(test_full_disk) {
    const char *path = temp_path("file");
    assert_int_equal(tn_write_file("old", 3, path), TN_OK);
    tn_tensor *large = tn_ones(TN_DIMS(1 << 16), TN_F32);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 1, 100, 1 << 12, 1 << 18};
    for (int i = 0; i < 5; i++) {
        small.rlim_cur = limits[i];
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        tn_safetensors_writer_add(w, "large", large);
        setrlimit(RLIMIT_FSIZE, &small);
        tn_status status = tn_safetensors_writer_save(w, path);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(status, TN_EIO);
        assert_error(TN_EIO, "File too large");
        expect_contents(path, "old");
        assert_int_equal(temp_count(), 1); /* no leftovers */
    }
    assert_int_equal(tn_write_file("new", 3, path), TN_OK);
    expect_contents(path, "new");
}

/* Root may write anything, so another user tries, in a child. */
PLAIN_TEST(test_folder_without_rights) {
    const char *path = temp_path("file");
    assert_int_equal(tn_write_file("old", 3, path), TN_OK);
    chmod(temp_folder, 0555);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && setuid(65534) != 0) { _exit(9); }
        bool refused = tn_write_file("new", 3, path) == TN_EIO &&
                       strstr(tn_error_message(), "Permission denied");
        _exit(refused ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    chmod(temp_folder, 0755);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_contents(path, "old");
    assert_int_equal(temp_count(), 1);
}

PLAIN_TEST(test_bad_paths) {
    assert_fails(tn_write_file("x", 1, "/nowhere/at/all"), TN_EIO,
                 "/nowhere/at/all.tmp: No such file");
    assert_fails(tn_write_file("x", 1, NULL), TN_EVALUE, "");
    assert_fails(tn_write_file("x", 1, ""), TN_EVALUE, "");
    const char *folder = temp_path("folder");
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_fails(tn_write_file("x", 1, folder), TN_EIO, "folder is not a regular file");
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(temp_count(), 1);
}

/* The leftover of a killed process is reused; what a live one is writing is not touched. */
PLAIN_TEST(test_leftovers) {
    const char *path = temp_path("file"), *leftover = temp_path("file.tmp");
    temp_write(leftover, "half a f", 8);
    assert_int_equal(tn_write_file("whole", 5, path), TN_OK);
    expect_contents(path, "whole");
    assert_int_equal(temp_count(), 1);

    temp_write(leftover, "theirs", 6);
    int fd = open(leftover, O_WRONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_fails(tn_write_file("mine", 4, path), TN_EIO, "another process is writing it");
    expect_contents(path, "whole");
    expect_contents(leftover, "theirs");
    close(fd);
    assert_int_equal(tn_write_file("mine", 4, path), TN_OK);
    expect_contents(path, "mine");

    assert_int_equal(symlink("/etc/passwd", leftover), 0); /* never written through */
    assert_fails(tn_write_file("x", 1, path), TN_EIO, "");
    assert_int_equal(unlink(leftover), 0);
}

/* A process was killed after it gave its file the permissions of the one to replace, and before it
 * renamed it. Root may write anything, so another user tries. */
PLAIN_TEST(test_leftover_that_nobody_may_write) {
    const char *path = temp_path("file"), *leftover = temp_path("file.tmp");
    uid_t me = geteuid();
    temp_write(path, "old", 3);
    assert_int_equal(chmod(temp_folder, 0777), 0);
    if (me == 0 && seteuid(65534) != 0) { skip(); /* a user namespace without this user */ }
    temp_write(leftover, "half", 4);
    assert_int_equal(chmod(leftover, 0444), 0);
    tn_status status = tn_write_file("new", 3, path);
    assert_int_equal(seteuid(me), 0);
    assert_int_equal(status, TN_OK);
    expect_contents(path, "new");
    assert_int_equal(temp_count(), 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(chmod(temp_folder, 0700), 0);
}

/* Several processes at once: every call succeeds or says that another is writing, and the file is
 * always one of theirs. */
PLAIN_TEST(test_many_writers) {
    enum { WRITERS = 4, TIMES = 60 };
    const char *path = temp_path("file");
    pid_t children[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            char text[5000];
            memset(text, 'a' + i, sizeof(text));
            for (int k = 0; k < TIMES; k++) {
                tn_status status = tn_write_file(text, sizeof(text), path);
                if (status != TN_OK && !strstr(tn_error_message(), "another process is writing")) {
                    _exit(2);
                }
                tn_error_clear();
            }
            _exit(0);
        }
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        waitpid(children[i], &status, 0);
        assert_int_equal(status, 0);
    }
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    assert_int_equal(bytes, 5000);
    for (size_t i = 1; i < bytes; i++) {
        assert_int_equal(data[i], data[0]);
    }
    free(data);
    assert_int_equal(temp_count(), 1);
}
