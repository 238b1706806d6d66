/* Runs the fuzz targets' seeds, and what they have found so far, as an ordinary test. */
#include "tests/fuzz/fuzz_config.c"
#include "tests/support/test.h"
#include "tests/fuzz/fuzz_parts.c"

#include "tests/support/replay.h"

TEST(replays_configs) {
    assert_true(replay_corpus("fuzz_config", fuzz_config) >= 20);
}

TEST(replays_parts) {
    assert_true(replay_corpus("fuzz_parts", fuzz_parts) >= 15);
}
