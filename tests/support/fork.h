/* A child by fork, for tests: what is true in it, and that it ends.
 *
 *     static void computes(void *user) { child_assert(tn_threads() == 1); }
 *
 *     static void test_child(void **state) { assert_child(computes, NULL); }
 */
#ifndef TERN_TESTS_SUPPORT_FORK_H
#define TERN_TESTS_SUPPORT_FORK_H

#include "tests/support/test.h"

/* Runs body(user) in a child. The test fails unless it returns there, with no error pending; one
 * that hangs is ended by an alarm after two minutes. */
#define assert_child(body, user) assert_child_at(body, user, __FILE__, __LINE__)
void assert_child_at(void (*body)(void *user), void *user, const char *file, int line);

/* In the body: says what is not true, and ends the child. (cmocka's assert_… would go on with the
 * parent's tests.) */
#define child_assert(truth) ((truth) ? (void)0 : child_failed(#truth, __FILE__, __LINE__))
void child_failed(const char *what, const char *file, int line);

/* In the body: this error is pending, and its message has `part` in it. Clears it. */
#define child_error(status, part) child_error_at(status, part, __FILE__, __LINE__)
void child_error_at(tn_status status, const char *part, const char *file, int line);

#endif
