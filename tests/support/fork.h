/* A forked child, for tests: what is true in it, and that it ends.
 *
 *     static void computes(void *user) { child_assert(tn_threads() == 1); }
 *
 *     static void test_child(void **state) { assert_child(computes, NULL); }
 */
#ifndef TERN_TESTS_SUPPORT_FORK_H
#define TERN_TESTS_SUPPORT_FORK_H

#include "tests/support/test.h"

/* The thread sanitizer ends a child that starts a thread. */
#if defined(__SANITIZE_THREAD__)
enum { CHILD_HAS_THREADS = false };
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
enum { CHILD_HAS_THREADS = false };
#else
enum { CHILD_HAS_THREADS = true };
#endif
#else
enum { CHILD_HAS_THREADS = true };
#endif

/* Runs body(user) in a child. The test fails unless it returns there, with no error pending; one
 * that hangs is ended by an alarm after two minutes. */
#define assert_child(body, user) assert_true(child_passes(body, user))
/* The same without cmocka; says what was wrong. */
bool child_passes(void (*body)(void *user), void *user);

/* In the body: says what is not true, and ends the child. (cmocka's assert_… would continue with
 * the parent's tests.) */
#define child_assert(truth) ((truth) ? (void)0 : child_failed(#truth, __FILE__, __LINE__))
void child_failed(const char *what, const char *file, int line);

/* In the body: this error is pending, and its message has `part` in it. Clears it. */
#define child_error(status, part) child_error_at(status, part, __FILE__, __LINE__)
void child_error_at(tn_status status, const char *part, const char *file, int line);

#endif
