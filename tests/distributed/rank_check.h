/* Checks for tests whose ranks are threads (tn_local_run). cmocka's assertions jump, which only the
 * main thread may do: ranks count failures, and the main thread checks the count. */
#ifndef TERN_TESTS_DISTRIBUTED_RANK_CHECK_H
#define TERN_TESTS_DISTRIBUTED_RANK_CHECK_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static int failures;
static int ranks_told; /* how many know rank 1's error: stay_until_told */

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);                 \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, \
                    tn_error_message());                                        \
        }                                                                       \
    } while (0)

/* The pending error is this one; clears it. */
static inline bool failed_with(tn_status status, const char *part) {
    bool fine = tn_error() == status && strstr(tn_error_message(), part);
    if (!fine) {
        fprintf(stderr, "%s: \"%s\", not \"%s\"\n", tn_status_name(tn_error()), tn_error_message(),
                part);
    }
    tn_error_clear();
    return fine;
}

/* Ranks share the cores already. */
__attribute__((constructor)) static void compute_in_one_thread(void) {
    tn_set_threads(1);
}

/* Runs f with `user`, which it may change if it is the caller's variable. */
static inline void run_ok(int ranks, void (*f)(tn_group *, void *), const void *user) {
    failures = ranks_told = 0;
    if (tn_local_run(ranks, f, (void *)(uintptr_t)user) != TN_OK) {
        fail_msg("%s", tn_error_message());
    }
    assert_int_equal(failures, 0);
}

/* A test whose body each rank of `world` runs, with each of these numbers of ranks in turn. */
#define RANKS_TEST(name, ...)                                           \
    static void name##_of_rank(tn_group *world, void *user);            \
    TEST(name) {                                                        \
        static const int sizes[] = {__VA_ARGS__};                       \
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) { \
            run_ok(sizes[i], name##_of_rank, NULL);                     \
        }                                                               \
    }                                                                   \
    static void name##_of_rank(__attribute__((unused)) tn_group *world, \
                               __attribute__((unused)) void *user)

/* Runs f, which must fail with `want`, and returns the error message. */
static inline const char *run_failing(int ranks, void (*f)(tn_group *, void *), const void *user,
                                      tn_status want) {
    static char message[1024];
    failures = ranks_told = 0;
    tn_status status = tn_local_run(ranks, f, (void *)(uintptr_t)user);
    snprintf(message, sizeof(message), "%s", tn_error_message());
    tn_error_clear();
    assert_int_equal(failures, 0);
    if (status != want) {
        fail_msg("%s instead of %s: %s", tn_status_name(status), tn_status_name(want), message);
    }
    return message;
}

/* A test whose body fails with `status` and a message that has `part` in it, on this many ranks. */
#define RANKS_TEST_FAILS(name, ranks, status, part)                              \
    static void name##_of_rank(tn_group *world, void *user);                     \
    TEST(name) {                                                                 \
        assert_contains(run_failing(ranks, name##_of_rank, NULL, status), part); \
    }                                                                            \
    static void name##_of_rank(__attribute__((unused)) tn_group *world,          \
                               __attribute__((unused)) void *user)

/* Rank 1, which failed, stays until the others have its error, so that they do not merely notice
 * that it left. */
static inline void stay_until_told(tn_group *g) {
    if (tn_group_rank(g) != 1) {
        __atomic_fetch_add(&ranks_told, 1, __ATOMIC_RELEASE);
        return;
    }
    int others = tn_group_size(g) - 1;
    for (int i = 0; i < 1000 && __atomic_load_n(&ranks_told, __ATOMIC_ACQUIRE) < others; i++) {
        usleep(10000);
    }
    CHECK(__atomic_load_n(&ranks_told, __ATOMIC_ACQUIRE) == others);
}

#endif
