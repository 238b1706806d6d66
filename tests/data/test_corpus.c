/* The seeds of the fuzz targets of this folder, and what they have found so far, as an ordinary
 * test. */
#include "tests/fuzz/fuzz_corpus.c"
#include "tests/support/test.h"
#include "tests/fuzz/fuzz_cifar.c"
#include "tests/fuzz/fuzz_csv.c"
#include "tests/fuzz/fuzz_picture.c"
#include "tests/fuzz/fuzz_idx.c"
#include "tests/fuzz/fuzz_shards.c"
#include "tests/fuzz/fuzz_tokenizer.c"

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
