/* Tests register themselves, and a program runs those that it has, in the order of the source:
 *
 *     TEST(sum_of_nothing) {
 *         assert_inert(tn_sum(NULL, 0), TN_EVALUE, "is NULL");
 *     }
 *
 * A program whose main would only be `return tests_run(NULL, NULL)` has none: run.c has one, which
 * also knows ranks (ranks.h).
 */
#ifndef TERN_TESTS_SUPPORT_RUN_H
#define TERN_TESTS_SUPPORT_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include <cmocka.h>

/* A test that begins with a setup and ends with a teardown, each a function or NULL. `state` in its
 * body is what the setup left there. */
#define TEST_WITH(name, setup, teardown)                             \
    static void name(void **state);                                  \
    __attribute__((constructor)) static void register_##name(void) { \
        test_add(#name, name, setup, teardown, NULL, __COUNTER__);   \
    }                                                                \
    static void name(__attribute__((unused)) void **state)

/* With neither. Most tests begin with TEST (test.h). */
#define PLAIN_TEST(name) TEST_WITH(name, NULL, NULL)

/* What the macros call, and a main that makes tests of a table. Tests run in the order of `place`,
 * those of one place in the order of the calls. `name` stays the caller's. */
void test_add(const char *name, CMUnitTestFunction f, CMFixtureFunction setup,
              CMFixtureFunction teardown, void *initial_state, int place);

/* Runs all tests, between a setup and a teardown of the whole program (or NULL), and returns main's
 * result. They have a folder (temp.h). */
int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown);

#ifdef __cplusplus
}
#endif

#endif
