/* Paths that are not regular files, given to everything that reads one: an error that says what it
 * is, at once. A FIFO without a writer would hang its reader, and /dev/zero would fill memory. */
#include "tern/tern.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- Everything that reads a file ------------------------------------------------------------ */

static bool read_text(const char *path) {
    char *text = tn_text_read(path, NULL);
    tn_text_free(text);
    return text != NULL;
}

static bool read_shards(const char *path) {
    tn_dataset *d = tn_token_shards(path, 4, 100);
    tn_dataset_free(d);
    return d != NULL;
}

static bool read_digits(const char *path, const char *name) {
    const char *there = temp_path(name);
    assert_int_equal(symlink(path, there), 0);
    tn_dataset *d = tn_mnist(temp_folder, true);
    tn_dataset_free(d);
    unlink(there);
    return d != NULL;
}

static bool read_digits_plain(const char *path) {
    return read_digits(path, "train-images-idx3-ubyte");
}

static bool read_digits_gz(const char *path) {
    return read_digits(path, "train-images-idx3-ubyte.gz");
}

static bool read_history(const char *path) {
    tn_history *h = tn_history_open(path, 1);
    tn_history_free(h);
    return h != NULL;
}

static bool read_tensors(const char *path) {
    tn_safetensors *f = tn_safetensors_open(path);
    tn_safetensors_close(f);
    return f != NULL;
}

static bool read_checkpoint(const char *path) {
    tn_checkpoint c = {.partial = true};
    return tn_checkpoint_load(&c, path) == TN_OK;
}

static const struct {
    const char *name;
    bool (*read)(const char *path);
} readers[] = {
    {"text", read_text},
    {"token shards", read_shards},
    {"mnist", read_digits_plain},
    {"mnist, compressed", read_digits_gz},
    {"history", read_history},
    {"safetensors", read_tensors},
    {"checkpoint", read_checkpoint},
};
enum { READERS = sizeof(readers) / sizeof(readers[0]) };

/* ---- What they are given --------------------------------------------------------------------- */

static void refused_by_all(const char *path, const char *what) {
    for (int i = 0; i < READERS; i++) {
        print_message("# %s of %s\n", readers[i].name, path);
        assert_false(readers[i].read(path));
        assert_error(TN_EIO, what);
    }
}

TEST_WITH(test_fifo, NULL, temp_clean) {
    const char *path = temp_path("fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    refused_by_all(path, "is a FIFO, not a regular file");
}

TEST_WITH(test_device, NULL, temp_clean) {
    const char *path = temp_path("zeros");
    assert_int_equal(symlink("/dev/zero", path), 0);
    refused_by_all(path, "is a character device, not a regular file");
}
