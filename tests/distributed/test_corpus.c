/* The seeds of the fuzz targets for the store's server, for calls and for environments, run as an
 * ordinary test. */
#define _GNU_SOURCE
#define LLVMFuzzerTestOneInput fuzz_store
#include "tests/fuzz/fuzz_store.c"
#include "tests/support/test.h"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_rpc
#include "tests/fuzz/fuzz_rpc.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_environment
#include "tests/fuzz/fuzz_environment.c"
#undef LLVMFuzzerTestOneInput

#include "tests/support/replay.h"

static void test_store(void **state) {
    assert_true(replay_corpus("fuzz_store", fuzz_store) >= 25);
}

static void test_calls(void **state) {
    assert_true(replay_corpus("fuzz_rpc", fuzz_rpc) >= 25);
}

static void test_environments(void **state) {
    assert_true(replay_corpus("fuzz_environment", fuzz_environment) >= 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_environments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
