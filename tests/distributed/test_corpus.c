/* The seeds of the fuzz targets for the store's server, for calls and for environments, run as an
 * ordinary test. */
#include "tests/fuzz/fuzz_store.c"
#include "tests/support/test.h"
#include "tests/fuzz/fuzz_rpc.c"
#include "tests/fuzz/fuzz_environment.c"

#include "tests/support/replay.h"

PLAIN_TEST(test_store) {
    assert_true(replay_corpus("fuzz_store", fuzz_store) >= 25);
}

PLAIN_TEST(test_calls) {
    assert_true(replay_corpus("fuzz_rpc", fuzz_rpc) >= 25);
}

PLAIN_TEST(test_environments) {
    assert_true(replay_corpus("fuzz_environment", fuzz_environment) >= 12);
}
