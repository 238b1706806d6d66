/* What every test program needs: tests, each with a setup and a teardown, and expected errors.
 *
 *     TEST(sum_of_nothing) {
 *         assert_inert(tn_sum(NULL, 0), TN_EVALUE, "is NULL");
 *     }
 *
 * Each check that fails names its line.
 */
#ifndef TERN_TESTS_SUPPORT_TEST_H
#define TERN_TESTS_SUPPORT_TEST_H

#include "tests/support/run.h"

#include "tern/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A test that begins with no error pending, recording, and the seed 1, in its own scope; at its end
 * no error may be pending, and as many tensors must be live as before. */
#define TEST(name) TEST_WITH(name, test_begin, test_end)
int test_begin(void **state);
int test_end(void **state);

/* Only a setup, for a test that needs no more: no error is pending. */
int test_no_error(void **state);

/* This error is pending, and its message has `part` in it. Clears it. */
#define assert_error(status, part) assert_error_at(status, part, __FILE__, __LINE__)
/* The same, and `t` is inert. */
#define assert_inert(t, status, part) assert_inert_at(t, status, part, __FILE__, __LINE__)
/* The same, and a call returned this status, or NULL. */
#define assert_fails(returned, status, part) \
    assert_fails_at(returned, status, part, __FILE__, __LINE__)
#define assert_none(returned, status, part) \
    assert_none_at(returned, status, part, __FILE__, __LINE__)
/* `text` has `part` in it. */
#define assert_contains(text, part) assert_contains_at(text, part, __FILE__, __LINE__)

/* a and b are at most `within` apart. Replaces cmocka's own, which compares floats and lets NaN
 * pass. */
#undef assert_float_equal
#define assert_float_equal(a, b, within) assert_near_at((a), (b), (within), __FILE__, __LINE__)

/* Those above call these. */
void assert_error_at(tn_status status, const char *part, const char *file, int line);
void assert_inert_at(const tn_tensor *t, tn_status status, const char *part, const char *file,
                     int line);
void assert_fails_at(tn_status returned, tn_status status, const char *part, const char *file,
                     int line);
void assert_none_at(const void *returned, tn_status status, const char *part, const char *file,
                    int line);
void assert_contains_at(const char *text, const char *part, const char *file, int line);
void assert_near_at(double a, double b, double within, const char *file, int line);
bool is_near(double a, double b, double within);

#ifdef __cplusplus
}
#endif

#endif
