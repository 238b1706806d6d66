/* Runs the fuzz targets' seeds, and what they have found so far, as an ordinary test. */
#define _GNU_SOURCE
#define LLVMFuzzerTestOneInput fuzz_config
#include "tests/fuzz/fuzz_config.c"
#include "tests/support/test.h"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_parts
#include "tests/fuzz/fuzz_parts.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_llmc
#include "tests/fuzz/fuzz_llmc.c"
#undef LLVMFuzzerTestOneInput

#include "tests/support/replay.h"

static void replays_configs(void **state) {
    assert_true(replay_corpus("fuzz_config", fuzz_config) >= 20);
}

static void replays_parts(void **state) {
    assert_true(replay_corpus("fuzz_parts", fuzz_parts) >= 15);
}

static void checkpoints_of_llmc(void **state) {
    assert_true(replay_corpus("fuzz_llmc", fuzz_llmc) >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(replays_configs), TEST(replays_parts),
                                       TEST(checkpoints_of_llmc)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
