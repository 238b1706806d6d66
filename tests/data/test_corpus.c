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
#define LLVMFuzzerTestOneInput fuzz_libsvm
#include "tests/fuzz/fuzz_libsvm.c"
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

static void test_texts(void **state) {
    assert_true(replay_corpus("fuzz_corpus", fuzz_corpus) >= 30);
}

static void test_cifar(void **state) {
    assert_true(replay_corpus("fuzz_cifar", fuzz_cifar) >= 7);
}

static void test_idx(void **state) {
    assert_true(replay_corpus("fuzz_idx", fuzz_idx) >= 15);
}

static void test_csv(void **state) {
    assert_true(replay_corpus("fuzz_csv", fuzz_csv) >= 15);
}

static void test_libsvm(void **state) {
    assert_true(replay_corpus("fuzz_libsvm", fuzz_libsvm) >= 15);
}

static void test_pictures(void **state) {
    assert_true(replay_corpus("fuzz_picture", fuzz_picture) >= 50);
}

static void test_shards(void **state) {
    assert_true(replay_corpus("fuzz_shards", fuzz_shards) >= 20);
}

static void test_tokenizers(void **state) {
    assert_true(replay_corpus("fuzz_tokenizer", fuzz_tokenizer) >= 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),  cmocka_unit_test(test_cifar),
        cmocka_unit_test(test_idx),    cmocka_unit_test(test_csv),
        cmocka_unit_test(test_libsvm), cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_shards), cmocka_unit_test(test_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
