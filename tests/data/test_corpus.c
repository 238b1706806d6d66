/* The seeds of the fuzz targets of this folder, and what they have found so far, as an ordinary
 * test. */
#define _GNU_SOURCE
#define LLVMFuzzerTestOneInput fuzz_corpus
#include "tests/fuzz/fuzz_corpus.c"
#include "tests/support/test.h"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_cifar
#include "tests/fuzz/fuzz_cifar.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_csv
#include "tests/fuzz/fuzz_csv.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_picture
#include "tests/fuzz/fuzz_picture.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_idx
#include "tests/fuzz/fuzz_idx.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_shards
#include "tests/fuzz/fuzz_shards.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tokenizer
#include "tests/fuzz/fuzz_tokenizer.c"
#undef LLVMFuzzerTestOneInput

#include "tests/support/replay.h"

PLAIN_TEST(test_texts) {
    assert_true(replay_corpus("fuzz_corpus", fuzz_corpus) >= 30);
}

PLAIN_TEST(test_cifar) {
    assert_true(replay_corpus("fuzz_cifar", fuzz_cifar) >= 7);
}

PLAIN_TEST(test_idx) {
    assert_true(replay_corpus("fuzz_idx", fuzz_idx) >= 15);
}

PLAIN_TEST(test_csv) {
    assert_true(replay_corpus("fuzz_csv", fuzz_csv) >= 15);
}

PLAIN_TEST(test_pictures) {
    assert_true(replay_corpus("fuzz_picture", fuzz_picture) >= 50);
}

PLAIN_TEST(test_shards) {
    assert_true(replay_corpus("fuzz_shards", fuzz_shards) >= 20);
}

PLAIN_TEST(test_tokenizers) {
    assert_true(replay_corpus("fuzz_tokenizer", fuzz_tokenizer) >= 45);
}
