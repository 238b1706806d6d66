/* How the parts of tests/api/test_inert*.c call functions as no one should.
 *
 * Each part runs four times: with NULL and with the inert tensor, and each of them with an error
 * pending or not. The macros say what a call must return; failures are collected and shown at the
 * end of the part, since nothing may be printed while it runs.
 */
#ifndef TERN_TESTS_API_INERT_H
#define TERN_TESTS_API_INERT_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/sys/tensor.h>
#include <tern/tern.h>

#include "core/sanitize.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- Around each call ------------------------------------------------------------------------ */

static char complaints[4096];
static bool pending; /* an error was raised before the part */
/* the part runs with NULL: each call must raise; with inert tensors it may stay silent */
static bool null;

static inline void add_complaint(int line, const char *call, const char *what) {
    size_t used = strlen(complaints);
    snprintf(complaints + used, sizeof complaints - used, "\n  line %d: %s: %s", line, call, what);
}

static inline void check_call(int line, const char *call, bool as_expected, bool raises) {
    if (!as_expected) {
        add_complaint(line, call, "an unexpected result");
    }
    if (pending) {
        if (tn_error() != TN_EPEER || !strstr(tn_error_message(), "the first")) {
            add_complaint(line, call, "the first error was overwritten");
            tn_error_clear();
            tn_raise(TN_EPEER, "the first");
        }
        return;
    }
    if (raises && tn_error() == TN_OK) {
        add_complaint(line, call, "no error");
    } else if (tn_error() != TN_OK && strlen(tn_error_message()) < 12) {
        add_complaint(line, call, "an error without a message");
    }
    tn_error_clear();
}

#define INERT(call) check_call(__LINE__, #call, tn_is_inert(call), null)
#define GIVES(call, expected) check_call(__LINE__, #call, (call) == (expected), null)
#define QUIET(call, expected) \
    check_call(__LINE__, #call, (call) == (expected), false) /* bad arguments are allowed here */
#define NOTHING(call) check_call(__LINE__, #call, !(call), null) /* NULL, false, 0 */
#define IS_NAN(call) check_call(__LINE__, #call, isnan(call), null)
#define FAILS(call)                                                                \
    do {                                                                           \
        tn_status status_ = (call);                                                \
        check_call(__LINE__, #call, status_ != TN_OK || !(null || pending), null); \
    } while (0)
#define DOES(call)                               \
    do {                                         \
        call;                                    \
        check_call(__LINE__, #call, true, null); \
    } while (0)
#define TAKES(call) /* does nothing, or something harmless */ \
    do {                                                      \
        call;                                                 \
        check_call(__LINE__, #call, true, false);             \
    } while (0)
#define EMPTY(call) /* tn_values after an error */                                      \
    do {                                                                                \
        tn_values values_ = (call);                                                     \
        check_call(__LINE__, #call, values_.n == 0 || tn_is_inert(values_.v[0]), null); \
    } while (0)

/* Runs a part with stdout and stderr caught in a file, which must stay empty. */
static inline void run_part(void (*part)(tn_tensor *t), tn_tensor *t, bool with_pending) {
    complaints[0] = 0;
    null = !t;
    pending = with_pending;
    fflush(NULL);
    FILE *caught = tmpfile();
    int out = dup(1), err = dup(2);
    assert_non_null(caught);
    assert_true(out >= 0 && err >= 0);
    dup2(fileno(caught), 1);
    dup2(fileno(caught), 2);
    int64_t alive = tn_live_tensors();
    if (pending) {
        tn_raise(TN_EPEER, "the first");
    }
    {
        TN_SCOPE;
        part(t);
    }
    tn_error_clear();
    fflush(NULL);
    int64_t printed = lseek(fileno(caught), 0, SEEK_END);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    if (complaints[0] || printed > 0) {
        char text[600] = "";
        rewind(caught);
        text[fread(text, 1, sizeof text - 1, caught)] = 0;
        snprintf(complaints + strlen(complaints), sizeof complaints - strlen(complaints), "%s%s",
                 text[0] ? "\n  printed: " : "", text);
        fclose(caught);
        fail_msg("with %s, %s:%s", t ? "inert" : "NULL",
                 with_pending ? "an error pending" : "no error pending", complaints);
    }
    fclose(caught);
    assert_int_equal(tn_live_tensors(), alive);
}

static inline void run_all(void (*part)(tn_tensor *t)) {
    run_part(part, NULL, false);
    run_part(part, NULL, true);
    run_part(part, tn_inert(), false);
    run_part(part, tn_inert(), true);
}

__attribute__((unused)) static const tn_dims strange[] = {{-1, {0}},
                                                          {99, {0}},
                                                          {1, {-1}},
                                                          {1, {INT64_MAX}},
                                                          {2, {INT64_MAX, INT64_MAX}},
                                                          {2, {INT64_MIN, 0}},
                                                          {3, {0, INT64_MAX, 2}},
                                                          {8, {1, 1, 1, 1, 1, 1, 1, 1 << 30}}};
enum { STRANGE = sizeof strange / sizeof *strange };
__attribute__((unused)) static const int ints[] = {INT32_MIN, -9, -1, 0, 2, 9, INT32_MAX};
__attribute__((unused)) static const int64_t longs[] = {INT64_MIN, -7, -1, 0, 3, 4096, INT64_MAX};
__attribute__((unused)) static const double reals[] = {-INFINITY, -1.0, 0.0, 1e300, INFINITY, NAN};
enum {
    INTS = sizeof ints / sizeof *ints,
    LONGS = sizeof longs / sizeof *longs,
    REALS = sizeof reals / sizeof *reals
};
__attribute__((unused)) static const tn_dtype no_dtype = (tn_dtype)77;

#define PART(name)            \
    PLAIN_TEST(test_##name) { \
        run_all(name);        \
    }

/* argv[1] may name one part, such as "test_views". Nothing may hang, hence the alarm; the limit
 * refuses sizes that a large machine could still hold. */
#define RUN_PARTS(argc, argv)                                              \
    ((argc) > 1 ? cmocka_set_test_filter((argv)[1]) : (void)0, alarm(240), \
     tn_memory_set_limit(256LL << 20), tests_run(NULL, temp_clean))

#endif
