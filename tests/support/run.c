#include "tests/support/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct CMUnitTest *tests;
static int *places;
static size_t count, room;

void test_add(const char *name, CMUnitTestFunction f, CMFixtureFunction setup,
              CMFixtureFunction teardown, void *initial_state, int place) {
    if (count == room) {
        room += 256;
        tests = realloc(tests, room * sizeof *tests);
        places = realloc(places, room * sizeof *places);
        if (!tests || !places) {
            fprintf(stderr, "no memory for %zu tests\n", room);
            exit(1);
        }
    }
    /* Compilers promise no order of constructors. */
    size_t at = count++;
    for (; at > 0 && places[at - 1] > place; at--) {
        places[at] = places[at - 1];
        tests[at] = tests[at - 1];
    }
    places[at] = place;
    tests[at] = (struct CMUnitTest){name, f, setup, teardown, initial_state};
}

int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown) {
    if (count == 0) {
        fprintf(stderr, "no tests\n");
        return 1;
    }
    int failed = _cmocka_run_group_tests("tests", tests, count, setup, teardown);
    free(tests);
    free(places);
    return failed;
}

/* The main of a program that has no other. */
int __attribute__((weak)) main(void) {
    return tests_run(NULL, NULL);
}
