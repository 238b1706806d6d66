/* Memory runs out in the middle of a save, a load or the report of a bad file, in Tern or in a
 * library that it is linked to: at every place, once, twice and three times in a row. A save is
 * TN_OK only if the file is right, and otherwise leaves the old one; a load changes nothing or
 * everything; an error still says where the program's call is: the line if its text is shown later,
 * the function or the program and an offset while memory is short. */
#include <sys/wait.h>

#include "tests/io/writers.h"
#include "tests/support/fail_malloc.h"

enum { IN_A_ROW = 3, MOST = 5000 };

/* ---- Saving ---------------------------------------------------------------------------------- */

static const char *file;
static int writer;
static tn_status ended;
static unsigned char *wanted;
static size_t wanted_bytes;

static void write_over(void) {
    ended = writers[writer].write(file);
    assert_int_equal(ended, tn_error());
}

/* The new file is there and right, or the old one. */
static void look_at_file(void) {
    size_t bytes;
    unsigned char *data = temp_read(file, &bytes);
    if (ended != TN_OK) {
        expect_old(file, writers[writer].name);
    } else if (bytes != wanted_bytes || memcmp(data, wanted, bytes) != 0) {
        fail_msg("%s said TN_OK, but the file is wrong", writers[writer].name);
    }
    free(data);
    file = old_file();
}

PLAIN_TEST(test_saving) {
    for (writer = 0; writer < WRITERS; writer++) {
        file = old_file();
        assert_int_equal(writers[writer].write(file), TN_OK);
        wanted = temp_read(file, &wanted_bytes);
        file = old_file();
        every_malloc(write_over, IN_A_ROW, look_at_file);
        free(wanted);
    }
}

/* ---- Loading --------------------------------------------------------------------------------- */

static tn_status load_module(const char *path) {
    return tn_load(&run.model, path);
}

static tn_status load_checkpoint(const char *path) {
    tn_checkpoint c = small_run_checkpoint(&run);
    return tn_checkpoint_load(&c, path);
}

static double first_weight(void) {
    return tn_at(run.model.weight, TN_DIMS(0, 0));
}

static void walk_load(tn_status (*load)(const char *path), const char *path) {
    TN_SCOPE;
    TN_NO_GRAD;
    double saved = first_weight();
    for (int row = 1; row <= IN_A_ROW; row++) {
        bool failed = true;
        for (int n = 0; failed; n++) {
            assert_true(n < MOST);
            tn_fill_(run.model.weight, 77);
            fail_malloc_at(n, row);
            tn_status status = load(path);
            failed = fail_malloc_end();
            assert_true(first_weight() == (status == TN_OK ? saved : 77));
            if (status != TN_OK) { assert_error(TN_ENOMEM, ""); }
        }
    }
}

PLAIN_TEST(test_loading) {
    const char *weights = temp_path("weights"), *checkpoint = temp_path("checkpoint");
    assert_int_equal(write_module(weights), TN_OK);
    assert_int_equal(write_checkpoint(checkpoint), TN_OK);
    walk_load(load_module, weights);
    walk_load(load_checkpoint, checkpoint);
    unlink(weights);
    unlink(checkpoint);
}

/* ---- Bad files ------------------------------------------------------------------------------- */

/* Files with bad headers, one with another tensor, and no file at all. */
static const char *const bad_headers[] = {
    "{\"weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,5]}}",
    "{\"weight\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
    "{\"weight\":{\"dtype\":\"F32\",\"shape\":[1]",
    "{\"__metadata__\":{\"digest\":\"\\u00e9\\n\",\"a\":\"b\"}}",
    NULL,
};
enum { BAD = sizeof(bad_headers) / sizeof(bad_headers[0]) };

static const char *bad_file(int i) {
    const char *path = temp_path("bad");
    unlink(path);
    if (bad_headers[i]) {
        unsigned char all[256] = {(unsigned char)strlen(bad_headers[i])};
        memcpy(all + 8, bad_headers[i], all[0]);
        temp_write(path, all, 8u + all[0]);
    }
    return path;
}

/* Loads while `row` allocations fail after `n`: an error that says where. True if one failed. */
static bool refuse_bad_file(tn_status (*load)(const char *path), const char *path, int n, int row) {
    static const char here[] = "test_every_allocation.c:";
    fail_malloc_at(n, row);
    tn_status status = load(path);
    bool failed = fail_malloc_end();
    if (status == TN_OK || strncmp(tn_error_message(), here, strlen(here)) != 0) {
        fail_msg("allocation %d, %d in a row: %s", n, row, tn_error_message());
    }
    tn_error_clear();
    return failed;
}

PLAIN_TEST(test_bad_files) {
    for (int i = 0; i < BAD; i++) {
        const char *path = bad_file(i);
        for (int row = 1; row <= IN_A_ROW; row++) {
            bool failed = true;
            for (int n = 0; failed; n++) {
                assert_true(n < MOST);
                failed = refuse_bad_file(load_module, path, n, row);
                failed = refuse_bad_file(load_checkpoint, path, n, row) || failed;
            }
        }
    }
    unlink(temp_path("bad"));
}

/* At the first error of a process nothing is prepared yet. */
PLAIN_TEST(test_first_error) {
    enum { WITHOUT_PLACE = 2, FAILED, ALL_SERVED };
    static const char here[] = "test_io_every_allocation+0x";
    for (int row = 1; row <= IN_A_ROW; row++) {
        int code = FAILED;
        for (int n = 0; code == FAILED; n++) {
            assert_true(n < MOST);
            pid_t child = fork();
            if (child == 0) {
                fail_malloc_at(n, row);
                bool placed = load_module("/nowhere/at/all") != TN_OK &&
                              strncmp(tn_error_message(), here, strlen(here)) == 0;
                _exit(!placed ? WITHOUT_PLACE : fail_malloc_end() ? FAILED : ALL_SERVED);
            }
            int status;
            waitpid(child, &status, 0);
            code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            if (code != FAILED && code != ALL_SERVED) {
                fail_msg("allocation %d, %d in a row: status %x", n, row, (unsigned)status);
            }
        }
    }
}

int main(void) {
    return tests_run(run_begin, run_end);
}
