/* What holds for every call that writes a file: if the disk is full or lies, the old file stays and
 * there is nothing next to it, even if an error ends the program; permissions are kept. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/io/writers.h"

/* ---- A disk that lies ------------------------------------------------------------------------ */

typedef enum lie { HONEST, FLIPPED, LOST, TWICE } lie;
static lie disk;

/* Overrides the C library's, for libtern too. Claims that all was written. */
ssize_t write(int fd, const void *data, size_t bytes) {
    if (disk == LOST && bytes > 1) {
        return syscall(SYS_write, fd, data, bytes - 1) < 0 ? -1 : (ssize_t)bytes;
    }
    if (disk == TWICE) { (void)!syscall(SYS_write, fd, data, bytes); }
    if (disk == FLIPPED && bytes) {
        char *copy = malloc(bytes);
        memcpy(copy, data, bytes);
        copy[bytes / 2] ^= 1;
        ssize_t written = syscall(SYS_write, fd, copy, bytes);
        free(copy);
        return written;
    }
    return syscall(SYS_write, fd, data, bytes);
}

/* ---- What holds for all ---------------------------------------------------------------------- */

PLAIN_TEST(test_lying_disk) {
    for (int i = 0; i < WRITERS; i++) {
        const char *path = old_file();
        for (lie l = FLIPPED; l <= TWICE; l++) {
            disk = l;
            tn_status status = writers[i].write(path);
            disk = HONEST;
            if (status == TN_OK) { fail_msg("%s, lie %d: TN_OK", writers[i].name, (int)l); }
            tn_error_clear();
            expect_old(path, writers[i].name);
        }
        assert_int_equal(writers[i].write(path), TN_OK);
    }
}

static rlim_t limit_files(rlim_t most) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = most;
    setrlimit(RLIMIT_FSIZE, &limit);
    return before;
}

PLAIN_TEST(test_full_disk) {
    for (int i = 0; i < WRITERS; i++) {
        const char *path = old_file();
        rlim_t before = limit_files(1);
        tn_status status = writers[i].write(path);
        limit_files(before);
        assert_int_equal(status, TN_EIO);
        assert_error(TN_EIO, "File too large");
        expect_old(path, writers[i].name);
    }
}

/* Programs may exit on errors. */
PLAIN_TEST(test_full_disk_ends_the_program) {
    for (int i = 0; i < WRITERS; i++) {
        const char *path = old_file();
        pid_t child = fork();
        if (child == 0) {
            if (!freopen("/dev/null", "w", stderr)) { _exit(9); }
            tn_on_error(tn_error_exit);
            limit_files(1);
            writers[i].write(path);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
        expect_old(path, writers[i].name);
    }
}

static mode_t mode_of(const char *path) {
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    return about.st_mode & 07777;
}

PLAIN_TEST(test_rights_are_kept) {
    static const mode_t modes[] = {0600, 0640, 0664, 0400};
    mode_t mask = umask(022);
    for (int i = 0; i < WRITERS; i++) {
        const char *path = temp_path("file");
        unlink(path);
        umask(027);
        assert_int_equal(writers[i].write(path), TN_OK);
        assert_int_equal(mode_of(path), 0640); /* what the mask leaves of 0666 */
        umask(022);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(chmod(path, modes[k]), 0);
            assert_int_equal(writers[i].write(path), TN_OK);
            assert_int_equal(mode_of(path), modes[k]);
        }
    }
    umask(mask);
}

PLAIN_TEST(test_owner_is_kept) {
    if (geteuid() != 0) {
        print_message("# only root gives files away\n");
        skip();
    }
    for (int i = 0; i < WRITERS; i++) {
        const char *path = old_file();
        struct stat about;
        assert_int_equal(chmod(path, 0600), 0);
        if (chown(path, 65534, 65534) != 0) { skip(); /* a user namespace without this user */ }
        assert_int_equal(writers[i].write(path), TN_OK);
        assert_int_equal(stat(path, &about), 0);
        assert_int_equal(about.st_uid, 65534);
        assert_int_equal(about.st_gid, 65534);
        assert_int_equal(mode_of(path), 0600);
    }
}

/* Root could replace a device. */
PLAIN_TEST(test_only_files_are_replaced) {
    const char *pipe = temp_path("pipe"), *link = temp_path("link");
    unlink(temp_path("file"));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("/dev/null", link), 0);
    for (int i = 0; i < WRITERS; i++) {
        assert_fails(writers[i].write(pipe), TN_EIO, "is not a regular file");
        assert_fails(writers[i].write(link), TN_EIO, "is not a regular file");
        assert_int_equal(temp_count(), 2);
    }
    assert_int_equal(unlink(pipe), 0);
    assert_int_equal(unlink(link), 0);
}

/* A link is replaced, not followed; but one of the system's, as /dev/stdout is when output goes to
 * a file, is refused. */
PLAIN_TEST(test_links) {
    struct stat about;
    char name[32];
    for (int i = 0; i < WRITERS; i++) {
        const char *path = old_file(), *link = temp_path("link"), *open_file = temp_path("open");
        assert_int_equal(symlink(path, link), 0);
        assert_int_equal(writers[i].write(link), TN_OK);
        assert_int_equal(lstat(link, &about), 0);
        assert_true(S_ISREG(about.st_mode));
        assert_int_equal(unlink(link), 0);
        expect_old(path, writers[i].name);

        int fd = open(path, O_RDONLY | O_CLOEXEC);
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        assert_int_equal(symlink(name, open_file), 0);
        assert_fails(writers[i].write(open_file), TN_EIO, "open is not a regular file");
        assert_int_equal(unlink(open_file), 0);
        expect_old(path, writers[i].name);
        close(fd);
    }
}

int main(void) {
    return tests_run(run_begin, run_end);
}
