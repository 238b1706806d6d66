/* Errors: the first sticks, handlers, other threads, the text. tests/core/test_place.sh tests line
 * numbers. */
#include "core/error.h"
#include "core/place.h"
#include "tern/tensor.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

static int reset_errors(void **state) {
    tn_error_clear();
    tn_on_error(NULL);
    tn_on_error_thread(NULL);
    return 0;
}

static void assert_ends(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    if (n < m || strcmp(text + n - m, end) != 0) {
        fail_msg("\"%s\" does not end with \"%s\"", text, end);
    }
}

TEST_WITH(test_first_sticks, reset_errors, NULL) {
    assert_int_equal(tn_error(), TN_OK);
    assert_string_equal(tn_error_message(), "");
    assert_int_equal(tn_raise(TN_EINDEX, "row %d of %d", 7, 5), TN_EINDEX);
    assert_int_equal(tn_raise(TN_EVALUE, "later"), TN_EVALUE);
    assert_int_equal(tn_error(), TN_EINDEX);
    assert_ends(tn_error_message(), ": row 7 of 5");
    assert_null(strstr(tn_error_message(), "(in"));
    tn_error_clear();
    assert_int_equal(tn_error(), TN_OK);
    assert_string_equal(tn_error_message(), "");
    tn_raise(TN_EVALUE, "again");
    assert_int_equal(tn_error(), TN_EVALUE);
}

TEST_WITH(test_ok_is_no_error, reset_errors, NULL) {
    assert_int_equal(tn_raise(TN_OK, "nothing"), TN_OK);
    assert_int_equal(tn_error(), TN_OK);
}

TEST_WITH(test_operation_is_named, reset_errors, NULL) {
    TN_SCOPE;
    tn_tensor *t = tn_empty(TN_DIMS(2, 3), TN_F32);
    assert_int_equal(tn_size(t, 2), 0);
    assert_int_equal(tn_error(), TN_EINDEX);
    assert_ends(tn_error_message(), ": size: dimension 2 of a tensor with 2 dimensions ([2, 3])");
}

/* The text names the caller even without debug information: here as a function or a file. */
TEST_WITH(test_place_names_the_caller, reset_errors, NULL) {
    tn_ndim(NULL);
    bool by_file = strncmp(tn_error_message(), "test_error.c:", 13) == 0;
    bool by_function = strncmp(tn_error_message(), "test_place_names_the_caller+0x", 30) == 0;
    if (!by_file && !by_function) { fail_msg("%s", tn_error_message()); }
}

/* The place is where the error was raised, even if it is looked up elsewhere and later; in a forked
 * child, too. */
TEST_WITH(test_place_is_looked_up_when_shown, reset_errors, NULL) {
    for (int lines = 1; lines >= 0; lines--) {
        tn_ndim(NULL);
        int line = __LINE__ - 1, status;
        pid_t child = fork();
        if (child == 0) {
            char by_file[64];
            tn__place_lines(lines);
            const char *text = tn_error_message();
            snprintf(by_file, sizeof(by_file), "test_error.c:%d: ndim: ", line);
            _exit(!strstr(text, "+0x") ? strncmp(text, by_file, strlen(by_file)) != 0 : lines * 2);
        }
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) == 2) {
            print_message("no libdw\n");
            skip();
        }
        assert_int_equal(status, 0);
        tn_error_clear();
    }
}

TEST_WITH(test_long_text_is_cut, reset_errors, NULL) {
    char text[4000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    tn_raise(TN_EVALUE, "%s", text);
    tn_error_record record;
    assert_true(tn_error_take(&record));
    assert_int_equal(strlen(record.message), sizeof(record.message) - 1);
    assert_ends(record.message, "xxxxxxxx");
}

static int calls, thread_calls;
static tn_status seen;
static char seen_text[1024];

static void handle_error(tn_status status, const char *message) {
    calls++;
    seen = status;
    strcpy(seen_text, message);
    tn_raise(TN_EIO, "from the handler"); /* one is pending: ignored */
}

static void thread_handler(tn_status status, const char *message) {
    thread_calls++;
}

/* Clears the error and fails again, like a handler whose own reporting is broken. */
static void failing_handler(tn_status status, const char *message) {
    calls++;
    tn_error_clear();
    tn_ndim(NULL);
    seen = status;
    strcpy(seen_text, message);
}

static void set_failing_handler(tn_status status, const char *message) {
    tn_on_error_thread(failing_handler);
    failing_handler(status, message);
}

TEST_WITH(test_a_handler_that_fails, reset_errors, NULL) {
    tn_error_handler handlers[] = {failing_handler, set_failing_handler};
    for (int i = 0; i < 2; i++) {
        tn_error_clear();
        calls = 0;
        tn_on_error_thread(handlers[i]);
        tn_raise(TN_EIO, "the first");
        assert_int_equal(calls, 1);
        assert_int_equal(seen, TN_EIO);
        assert_ends(seen_text, ": the first"); /* not overwritten by what followed */
        assert_int_equal(tn_error(), TN_EVALUE);
        assert_ends(tn_error_message(), ": ndim: the tensor is NULL");
        tn_error_clear();
        tn_raise(TN_EIO, "the second"); /* it is called again for the next one */
        assert_int_equal(calls, 2);
    }
    tn_error_clear();
    tn_on_error_thread(NULL);
}

TEST_WITH(test_handlers, reset_errors, NULL) {
    calls = thread_calls = 0;
    tn_on_error(handle_error);
    tn_raise(TN_ESHAPE, "one");
    tn_raise(TN_ESHAPE, "two");
    assert_int_equal(calls, 1);
    assert_int_equal(seen, TN_ESHAPE);
    assert_string_equal(seen_text, tn_error_message());
    assert_ends(seen_text, ": one");

    tn_error_clear();
    tn_on_error_thread(thread_handler);
    tn_raise(TN_ESHAPE, "three");
    assert_int_equal(calls, 1);
    assert_int_equal(thread_calls, 1);

    tn_error_clear();
    tn_on_error_thread(NULL);
    tn_raise(TN_ESHAPE, "four");
    assert_int_equal(calls, 2);
    tn_on_error(NULL);
}

static void *raise_in_thread(void *to) {
    if (tn_error() != TN_OK) { return "an error of another thread"; }
    tn_raise(TN_EFORMAT, "line %d", 3);
    return tn_error_take(to) && tn_error() == TN_OK ? NULL : "not taken";
}

TEST_WITH(test_errors_travel, reset_errors, NULL) {
    pthread_t thread;
    tn_error_record record;
    void *problem;
    tn_raise(TN_EINDEX, "here");
    assert_int_equal(pthread_create(&thread, NULL, raise_in_thread, &record), 0);
    pthread_join(thread, &problem);
    assert_null(problem);
    assert_int_equal(tn_error(), TN_EINDEX);
    tn_error_give(&record); /* one is pending: ignored */
    assert_int_equal(tn_error(), TN_EINDEX);

    tn_error_clear();
    calls = 0;
    tn_on_error(handle_error);
    tn_error_give(&record);
    tn_on_error(NULL);
    assert_int_equal(calls, 1);
    assert_int_equal(tn_error(), TN_EFORMAT);
    assert_string_equal(tn_error_message(), record.message);
    assert_ends(record.message, "line 3");
    if (strncmp(record.message, "test_error.c:", 13) != 0 &&
        strncmp(record.message, "raise_in_thread+0x", 18) != 0) {
        fail_msg("%s", record.message);
    }
}

/* The reason without place and operation: before the place is looked up and after, in a record, and
 * raised again by who knows more. */
TEST_WITH(test_reasons, reset_errors, NULL) {
    assert_string_equal(tn__error_why(), "");
    tn_raise(TN_EINDEX, "row: %d\x1b[0m is missing", 3);
    assert_string_equal(tn__error_why(), "row: 3 is missing");
    assert_ends(tn_error_message(), ": row: 3 is missing");
    assert_string_equal(tn__error_why(), "row: 3 is missing");
    tn_error_record record;
    assert_true(tn_error_take(&record));
    assert_string_equal(record.message + record.why, "row: 3 is missing");
    tn_error_give(&record);
    assert_string_equal(tn__error_why(), "row: 3 is missing");
    assert_int_equal(tn__raise_again("load", "table %d", 1), TN_EINDEX);
    assert_ends(tn_error_message(), ": load: table 1: row: 3 is missing");
    assert_string_equal(tn__error_why(), "table 1: row: 3 is missing");
    tn_error_clear();
    tn_error_give(&(tn_error_record){.status = TN_EIO, .message = "short", .why = 900});
    assert_string_equal(tn__error_why(), "short");
    tn_error_clear();
    assert_int_equal(tn__raise_again("load", "nothing"), TN_OK);
    assert_int_equal(tn_error(), TN_OK);
}

TEST_WITH(test_take_and_give_nothing, reset_errors, NULL) {
    tn_error_record record = {.status = TN_OK};
    assert_false(tn_error_take(&record));
    assert_false(tn_error_take(NULL));
    tn_error_give(NULL);
    tn_error_give(&record);
    assert_int_equal(tn_error(), TN_OK);
}

TEST_WITH(test_status_names, reset_errors, NULL) {
    assert_string_equal(tn_status_name(TN_OK), "TN_OK");
    assert_string_equal(tn_status_name(TN_EUNSUPPORTED), "TN_EUNSUPPORTED");
    assert_string_equal(tn_status_name(TN_EMISMATCH), "TN_EMISMATCH");
    assert_string_equal(tn_status_name((tn_status)99), "TN_UNKNOWN");
    assert_string_equal(tn_status_name((tn_status)-1), "TN_UNKNOWN");
}

/* Many threads raise their first error at once: they share the lookup of places. */
static void *raise_many(void *unused) {
    for (int i = 0; i < 50; i++) {
        tn_ndim(NULL);
        if (tn_error() != TN_EVALUE || !strstr(tn_error_message(), "ndim: the tensor is NULL")) {
            return "wrong error";
        }
        tn_error_clear();
    }
    return NULL;
}

TEST_WITH(test_threads_raise_at_once, reset_errors, NULL) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, raise_many, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *problem;
        pthread_join(threads[i], &problem);
        assert_null(problem);
    }
}
