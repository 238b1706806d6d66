/* Reading files: what is not a regular file, and files that others change meanwhile. */
#include "core/reader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

static void expect_refused(const char *path, const char *part) {
    tn__reader r;
    size_t bytes;
    assert_false(tn__reader_open(&r, path, "test"));
    assert_error(TN_EIO, part);
    assert_int_equal(r.fd, -1);
    assert_null(tn__read_whole(path, &bytes, "test"));
    assert_error(TN_EIO, part);
    assert_int_equal(bytes, 0);
}

/* A FIFO without a writer would hang its reader forever, and /dev/zero would fill the memory. */
TEST_WITH(test_no_files, NULL, temp_clean) {
    const char *fifo = temp_path("fifo"), *link = temp_path("link"), *name = temp_path("socket");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink(fifo, link), 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    expect_refused(fifo, "fifo is a FIFO, not a regular file");
    expect_refused(link, "link is a FIFO");
    expect_refused(name, "socket is a socket");
    expect_refused("/dev/zero", "/dev/zero is a character device");
    expect_refused("/", "/ is a folder");
    expect_refused("/nowhere/at/all", "/nowhere/at/all: No such file");
    expect_refused("", "No such file");
    close(fd);
}

TEST_WITH(test_null, NULL, temp_clean) {
    tn__reader r;
    assert_false(tn__reader_open(&r, NULL, "test"));
    assert_error(TN_EVALUE, "the path is NULL");
    tn__reader_close(&r);
}

TEST_WITH(test_whole_and_in_pieces, NULL, temp_clean) {
    const char *path = temp_path("file");
    temp_write(path, "some\0text", 9);
    size_t bytes;
    char *whole = tn__read_whole(path, &bytes, "test"), piece[5];
    assert_int_equal(bytes, 9);
    assert_memory_equal(whole, "some\0text", 10);
    free(whole);
    tn__reader r;
    assert_true(tn__reader_open(&r, path, "test"));
    assert_int_equal(r.bytes, 9);
    assert_true(tn__reader_get(&r, 5, piece, 4));
    assert_memory_equal(piece, "text", 4);
    assert_true(tn__reader_get(&r, 9, piece, 0));
    assert_false(tn__reader_get(&r, 5, piece, 5));
    assert_error(TN_EIO, "had 9 bytes, and now there is none at 9");
    tn__reader_close(&r);
}

TEST_WITH(test_cut_short, NULL, temp_clean) {
    const char *path = temp_path("file");
    char page[8192] = {0};
    temp_write(path, page, sizeof(page));
    tn__reader r;
    assert_true(tn__reader_open(&r, path, "test"));
    assert_int_equal(truncate(path, 100), 0);
    assert_false(tn__reader_get(&r, 4096, page, 4096));
    assert_error(TN_EIO, "file was cut short while it was read: it had 8192 bytes");
    assert_true(tn__reader_get(&r, 0, page, 100));
    tn__reader_close(&r);
}

/* ---- A file that others change --------------------------------------------------------------- */

typedef struct busy_file {
    const char *path;
    int done; /* atomic */
} busy_file;

static void *append_to(void *user) {
    busy_file *b = user;
    FILE *file = fopen(b->path, "ab");
    static const char line[1 << 14];
    for (int i = 0; i < 4096 && !__atomic_load_n(&b->done, __ATOMIC_ACQUIRE); i++) {
        fwrite(line, 1, sizeof(line), file);
    }
    fclose(file);
    return NULL;
}

/* Reads only up to the length that it had: a reader that chases the end might never reach it. */
TEST_WITH(test_growing, NULL, temp_clean) {
    busy_file b = {.path = temp_path("file")};
    struct stat about;
    temp_write(b.path, "begin", 5);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, append_to, &b), 0);
    for (int i = 0; i < 20; i++) {
        size_t bytes;
        char *data = tn__read_whole(b.path, &bytes, "test");
        assert_non_null(data);
        assert_memory_equal(data, "begin", 5);
        assert_int_equal(stat(b.path, &about), 0);
        assert_true(bytes >= 5 && bytes <= (size_t)about.st_size);
        free(data);
    }
    __atomic_store_n(&b.done, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
}

static void *change_length(void *user) {
    busy_file *b = user;
    while (!__atomic_load_n(&b->done, __ATOMIC_ACQUIRE)) {
        if (truncate(b->path, 10) != 0 || truncate(b->path, 4 << 20) != 0) { return user; }
    }
    return NULL;
}

/* The whole of its initial length, or an error. */
TEST_WITH(test_shrinking, NULL, temp_clean) {
    busy_file b = {.path = temp_path("file")};
    temp_write(b.path, "0123456789", 10);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, change_length, &b), 0);
    for (int i = 0; i < 200; i++) {
        size_t bytes;
        char *data = tn__read_whole(b.path, &bytes, "test");
        if (data) {
            assert_true(bytes == 10 || bytes == 4 << 20);
            assert_memory_equal(data, "0123456789", 10);
            free(data);
        } else {
            assert_error(TN_EIO, "was cut short");
        }
    }
    __atomic_store_n(&b.done, 1, __ATOMIC_RELEASE);
    void *failed;
    pthread_join(thread, &failed);
    assert_null(failed);
}

TEST_WITH(test_without_a_size, NULL, temp_clean) {
    size_t bytes;
    char *data = tn__read_whole("/proc/self/cmdline", &bytes, "test");
    assert_true(bytes > 0);
    assert_true(strlen(data) < bytes);
    free(data);
}
