/* Training a vocabulary: the merges and ids that `tokenizers` has for the same text; saved, and
 * loaded. */
#include "tern/tokenizer.h"

#include <stdint.h>
#include <string.h>

#include "tests/data/tokenizer_table.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

static tn_tokenizer *train_table(const char *pattern) {
    const char *texts[] = {table_text};
    size_t bytes[] = {sizeof(table_text) - 1};
    tn_tokenizer_train_options o =
        TN_WITH(tn_tokenizer_train, .vocab = TABLE_VOCAB, .pattern = pattern);
    tn_tokenizer *t = tn_tokenizer_train(texts, bytes, 1, o);
    assert_non_null(t);
    return t;
}

static void expect_rows(const tn_tokenizer *t, int pattern) {
    tn_ids ids = {0};
    for (size_t row = 0; row < sizeof(table) / sizeof(table[0]); row++) {
        const char *text = table[row].text;
        int by = pattern;
        while (table[row].by[by].count < 0) {
            by--;
        }
        ids.count = 0;
        assert_int_equal(tn_tokenizer_encode(t, text, strlen(text), true, &ids), TN_OK);
        assert_int_equal(ids.count, table[row].by[by].count);
        assert_memory_equal(ids.ids, table[row].by[by].ids, (size_t)ids.count * sizeof(int32_t));
    }
    tn_ids_free(&ids);
}

/* Every row with a trained tokenizer, and with the same one saved and loaded. */
TEST(as_tokenizers) {
    for (int pattern = 0; pattern < TABLE_PATTERNS; pattern++) {
        tn_tokenizer *t = train_table(table_patterns[pattern]);
        expect_rows(t, pattern);
        assert_int_equal(tn_tokenizer_save(t, temp_path("saved")), TN_OK);
        tn_tokenizer_free(t);
        t = tn_tokenizer_load(temp_path("saved"));
        assert_non_null(t);
        assert_int_equal(tn_tokenizer_size(t), TABLE_VOCAB);
        expect_rows(t, pattern);
        tn_tokenizer_free(t);
    }
}

/* What is read again is written as the same file. */
TEST(saved_files) {
    static const char *const patterns[] = {"gpt2", "llama3"};
    for (int i = 0; i < 2; i++) {
        tn_tokenizer *t = train_table(patterns[i]);
        assert_int_equal(tn_tokenizer_save(t, temp_path("first")), TN_OK);
        tn_tokenizer *again = tn_tokenizer_load(temp_path("first"));
        assert_non_null(again);
        assert_int_equal(tn_tokenizer_save(again, temp_path("second")), TN_OK);
        temp_same(temp_path("first/tokenizer.json"), temp_path("second/tokenizer.json"));
        tn_tokenizer_free(again);
        tn_tokenizer_free(t);
    }
}

/* A text that runs out of pairs gives a smaller vocabulary; min_count leaves rare pairs apart. */
TEST(small_texts) {
    const char *texts[] = {"abab ab", "\xff\xff\xff", ""};
    size_t bytes[] = {7, 3, 0};
    tn_tokenizer_train_options o = tn_tokenizer_train_defaults();
    tn_tokenizer *t = tn_tokenizer_train(texts, bytes, 3, o);
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_size(t), 256 + 5 + 1); /* ab, ÿÿ, " ab", abab, ÿÿÿ */
    tn_ids ids = {0};
    assert_int_equal(tn_tokenizer_encode(t, "\xff\xff\xff", 3, false, &ids), TN_OK);
    assert_int_equal(ids.count, 1);
    tn_ids_free(&ids);
    tn_tokenizer_free(t);
    o.min_count = 3;
    t = tn_tokenizer_train(texts, bytes, 3, o);
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_size(t), 256 + 1 + 1);
    tn_tokenizer_free(t);
    t = tn_tokenizer_train(NULL, NULL, 0, o);
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_size(t), 257);
    tn_tokenizer_free(t);
}

TEST(wrong_options) {
    const char *texts[] = {NULL};
    size_t bytes[] = {1};
    tn_tokenizer_train_options o = tn_tokenizer_train_defaults();
    assert_none(tn_tokenizer_train(texts, bytes, 1, o), TN_EVALUE, "one of the texts is NULL");
    bytes[0] = 0;
    o.vocab = 256;
    assert_none(tn_tokenizer_train(texts, bytes, 1, o), TN_EVALUE,
                "vocab is 256 (it must be 257 to 16777216)");
    o.vocab = 300;
    o.pattern = "[";
    assert_none(tn_tokenizer_train(texts, bytes, 1, o), TN_EFORMAT,
                "the pattern is not understood");
    o.pattern = "gpt2";
    const char *twice[] = {"<a>", "<a>"}, *bad[] = {"\xff"}, *empty[] = {""};
    o.special = twice;
    o.special_count = 2;
    assert_none(tn_tokenizer_train(texts, bytes, 1, o), TN_EFORMAT, "\"<a>\" occurs twice");
    o.special = bad;
    o.special_count = 1;
    assert_none(tn_tokenizer_train(texts, bytes, 1, o), TN_EFORMAT, "is not UTF-8");
    o.special = empty;
    assert_none(tn_tokenizer_train(texts, bytes, 1, o), TN_EFORMAT, "is not UTF-8");
}
