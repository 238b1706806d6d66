/* How tests/api/test_inert*.c call functions as no one should.
 *
 * Each part runs twice: with an error pending, which must stay the first one, and without. The
 * macros take what is expected of a call and say whether its result agrees. Complaints are
 * collected and shown at the end of the part, since nothing may be printed while it runs.
 */
#ifndef TERN_TESTS_API_INERT_H
#define TERN_TESTS_API_INERT_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/sys/backend.h>
#include <tern/sys/device.h>
#include <tern/sys/group.h>
#include <tern/sys/op.h>
#include <tern/sys/optim.h>
#include <tern/sys/store.h>
#include <tern/sys/tensor.h>
#include <tern/tern.h>

#include "core/sanitize.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- Around each call ------------------------------------------------------------------------ */

enum expected {
    MUST,    /* be an error, and the result says so */
    EVALUE,  /* the same, and the error is TN_EVALUE */
    MAY,     /* be an error, and the result says the same */
    INERT,   /* be inert, with or without an error */
    ANY,     /* not crash */
    ALLOWED, /* be no error */
    ZEROS    /* be the error about options without defaults */
};
enum result { FAILED, DONE, UNKNOWN };

static char complaints[1 << 20];
static bool pending;                  /* an error was raised before the part */
static int turn;                      /* of EACH */
static const char *form = "TN_WITH("; /* how the message says that options are made */

static inline void add_complaint(int line, const char *call, const char *what) {
    size_t used = strlen(complaints);
    snprintf(complaints + used, sizeof complaints - used, "\n  line %d, %d: %s: %s", line, turn,
             call, what);
}

static inline void check_pending(int line, const char *call, enum expected e, enum result r) {
    if (tn_error() != TN_EPEER || !strstr(tn_error_message(), "the first")) {
        add_complaint(line, call, "the first error was overwritten");
        tn_error_clear();
        tn_raise(TN_EPEER, "the first");
    }
    if ((e == MUST || e == EVALUE || e == INERT || e == ZEROS) && r == DONE) {
        add_complaint(line, call, "a result in spite of an error");
    }
}

static inline void check_call(int line, const char *call, enum expected e, enum result r) {
    if (pending) {
        check_pending(line, call, e, r);
        return;
    }
    bool raised = tn_error() != TN_OK;
    if ((e == MUST || e == EVALUE || e == ZEROS) && !raised) {
        add_complaint(line, call, "no error");
    } else if (e == ALLOWED && raised) {
        add_complaint(line, call, tn_error_message());
    } else if (e == INERT && r == DONE) {
        add_complaint(line, call, "not inert");
    } else if (e != ANY && e != INERT && raised && r == DONE) {
        add_complaint(line, call, "a result in spite of an error");
    } else if (e != ANY && e != INERT && !raised && r == FAILED) {
        add_complaint(line, call, "failed without an error");
    } else if (raised && strlen(tn_error_message()) < 12) {
        add_complaint(line, call, "an error without a message");
    } else if (e == EVALUE && tn_error() != TN_EVALUE) {
        add_complaint(line, call, tn_error_message());
    } else if (e == ZEROS && (tn_error() != TN_EVALUE || !strstr(tn_error_message(), form))) {
        add_complaint(line, call, tn_error_message());
    }
    tn_error_clear();
}

static inline void check_module(int line, const char *call, enum expected e, void *m) {
    bool raised = tn_error() != TN_OK;
    check_call(line, call, e, UNKNOWN);
    if (raised && !pending && !tn_is_inert(tn_call(m, tn_ones(TN_DIMS(1, 2), TN_F32)))) {
        add_complaint(line, call, "a module that works in spite of an error");
    }
    if (!pending) { tn_error_clear(); }
}

#define TENSOR(expected, call) \
    check_call(__LINE__, #call, expected, tn_is_inert(call) ? FAILED : DONE)
#define STATUS(expected, call) \
    check_call(__LINE__, #call, expected, (call) != TN_OK ? FAILED : DONE)
#define OTHER(expected, call) check_call(__LINE__, #call, expected, ((void)(call), UNKNOWN))
#define OPTIONS(expected, call) \
    check_call(__LINE__, #call, expected, (call).from_defaults ? DONE : FAILED)
/* A pointer to something that exists, or NULL if there is no such thing. */
#define FOUND(expected, call) check_call(__LINE__, #call, expected, (call) ? DONE : UNKNOWN)
#define VALUES(expected, call)                           \
    do {                                                 \
        tn_values values_ = (call);                      \
        check_call(__LINE__, #call, expected,            \
                   values_.n == 0              ? UNKNOWN \
                   : tn_is_inert(values_.v[0]) ? FAILED  \
                                               : DONE);  \
    } while (0)
/* A pointer to something new. */
#define NEW(expected, call, free)                                    \
    do {                                                             \
        void *new_ = (call);                                         \
        check_call(__LINE__, #call, expected, new_ ? DONE : FAILED); \
        free(new_);                                                  \
    } while (0)
/* A new module, which is there even after an error: then its result is inert. */
#define MODULE(expected, call)                         \
    do {                                               \
        void *new_ = (call);                           \
        check_module(__LINE__, #call, expected, new_); \
        tn_module_free(new_);                          \
    } while (0)
/* The same for a call that initialises `made`, of the type. */
#define MADE(expected, call, type)                      \
    do {                                                \
        static const type zeros_;                       \
        type made = zeros_;                             \
        call;                                           \
        check_module(__LINE__, #call, expected, &made); \
        tn_module_finish(&made);                        \
    } while (0)
#define FIRST(n) (turn < (n) ? MUST : MAY)
#define EACH(array) for (turn = 0; turn < (int)(sizeof(array) / sizeof(*array)); turn++)

#if TN__ASAN
void __sanitizer_set_report_fd(void *fd);
#endif

/* Runs a part with stdout and stderr caught in a file, which must stay empty. */
static inline void run_part(void (*part)(void), bool with_pending) {
    complaints[0] = 0;
    pending = with_pending;
    fflush(NULL);
    FILE *caught = tmpfile();
    int out = dup(1), err = dup(2);
    assert_non_null(caught);
    assert_true(out >= 0 && err >= 0);
    dup2(fileno(caught), 1);
    dup2(fileno(caught), 2);
#if TN__ASAN
    __sanitizer_set_report_fd((void *)(intptr_t)err); /* its reports are not caught */
#endif
    int64_t alive = tn_live_tensors();
    if (pending) { tn_raise(TN_EPEER, "the first"); }
    {
        TN_SCOPE;
        part();
    }
    tn_error_clear();
    fflush(NULL);
    int64_t printed = lseek(fileno(caught), 0, SEEK_END);
    dup2(out, 1);
    dup2(err, 2);
#if TN__ASAN
    __sanitizer_set_report_fd((void *)STDERR_FILENO);
#endif
    close(out);
    close(err);
    if (complaints[0] || printed > 0) {
        char text[600] = "";
        rewind(caught);
        text[fread(text, 1, sizeof text - 1, caught)] = 0;
        fclose(caught);
        fprintf(stderr, "%s\n%s%s\n", complaints, text[0] ? "printed: " : "", text);
        fail_msg("%s", with_pending ? "with an error pending" : "with no error pending");
    }
    fclose(caught);
    assert_int_equal(tn_live_tensors(), alive);
}

#define PART(name)             \
    static void name(void);    \
    PLAIN_TEST(test_##name) {  \
        run_part(name, false); \
        run_part(name, true);  \
    }                          \
    static void name(void)

/* ---- Wrong values ---------------------------------------------------------------------------- */

#define WRONG __attribute__((unused)) static const
WRONG int ints[] = {INT32_MIN, -9, -1, 0, 2, 9, INT32_MAX};
WRONG int few_ints[] = {INT32_MIN, -1, 0};
WRONG int enums[] = {-1, 99};
WRONG int64_t longs[] = {INT64_MIN, -7, -1, 0, 3, 300, INT64_MAX};
WRONG int64_t few_longs[] = {INT64_MIN, -1, 0};
WRONG double reals[] = {NAN, -INFINITY, -1.0, 0.0, 1e300, INFINITY};
WRONG double short_times[] = {-INFINITY, -1.0, 0.0, NAN};
WRONG bool bools[] = {false, true};
WRONG tn_dtype dtypes[] = {(tn_dtype)77, (tn_dtype)-1, TN_F64, TN_BF16, TN_I64, TN_BOOL};
static char endless[300];
static const char *const texts[] = {"", ".", "a.", ",", "->", "......", "i\xffj", ":-1", endless};
WRONG tn_device devices[] = {
    {(tn_device_kind)5, -3}, {TN_CPU, 1}, {TN_CUDA, -1}, {TN_CUDA, 1 << 20}};
WRONG tn_dims strange[] = {{-1, {0}},
                           {99, {0}},
                           {1, {-1}},
                           {1, {INT64_MAX}},
                           {2, {INT64_MAX, INT64_MAX}},
                           {2, {INT64_MIN, 0}},
                           {3, {0, INT64_MAX, 2}},
                           {8, {1, 1, 1, 1, 1, 1, 1, 1 << 30}}};

/* argv[1] may name one part, such as "test_views". Nothing may hang, hence the alarm; the limit
 * refuses sizes that a large machine could still hold. */
#define RUN_PARTS(argc, argv)                                              \
    ((argc) > 1 ? cmocka_set_test_filter((argv)[1]) : (void)0, alarm(240), \
     tn_memory_set_limit(256LL << 20), tests_run(NULL, NULL))

#endif
