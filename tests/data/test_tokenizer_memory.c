/* Memory runs out at every place of a tokenizer's life, in Tern or in a library: an error that says
 * so, nothing leaked, and existing files stay. */
#include "tern/tokenizer.h"

#include <stdint.h>

#include "tests/data/small_tokenizer.h"
#include "tests/support/fail_malloc.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { MOST = 20000 };
static const char cut_json[] =
    ",\"merges\":[\"h e\",\"l l\"]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s+\"},\"behavior\":\"Isolated\"},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
    "\"added_tokens\":[{\"id\":262,\"content\":\"<|endoftext|>\",\"special\":true}]}";

static void write_files(void) {
    small_write(SMALL_MERGES);
    FILE *f = fopen(temp_path("tokenizer.json"), "wb");
    assert_non_null(f);
    fputs("{\"model\":{\"vocab\":", f);
    small_vocab(f);
    fputs(cut_json, f);
    assert_int_equal(fclose(f), 0);
    static const char ranks[] = "YQ== 0\nYg== 1\nYWI= 2\n";
    temp_write(temp_path("x.tiktoken"), ranks, sizeof(ranks) - 1);
}

static tn_tokenizer *load_json(void) {
    return tn_tokenizer_load(temp_path("tokenizer.json"));
}

static tn_tokenizer *load_merges(void) {
    return tn_tokenizer_load(temp_path("merges.txt"));
}

static tn_tokenizer *load_ranks(void) {
    static const char *const special[] = {"<|end|>"};
    tn_tiktoken_options o =
        TN_WITH(tn_tiktoken, .pattern = "o200k", .special = special, .special_count = 1);
    return tn_tokenizer_load_tiktoken(temp_path("x.tiktoken"), o);
}

static tn_tokenizer *train_small(void) {
    const char *texts[] = {"abab abc", "\xff\xff ab<|endoftext|>"};
    size_t bytes[] = {8, 18};
    tn_tokenizer_train_options o = TN_WITH(tn_tokenizer_train, .vocab = 270);
    return tn_tokenizer_train(texts, bytes, 2, o);
}

TEST(making_without_memory) {
    tn_tokenizer *(*const makers[])(void) = {load_json, load_merges, load_ranks, train_small};
    write_files();
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++) {
        bool failed = true;
        for (long n = 0; failed; n++) {
            assert_true(n < MOST);
            fail_malloc_at(n, 1);
            tn_tokenizer *t = makers[i]();
            failed = fail_malloc_end();
            if (!t) {
                assert_true(failed);
                assert_error(TN_ENOMEM, "");
            }
            tn_tokenizer_free(t); /* works without the JIT, too */
        }
    }
}

/* A special token, short pieces, a piece for the heap. */
TEST(encoding_without_memory) {
    char text[300] = "hello<|endoftext|> \xff hello ";
    memset(text + strlen(text), 'l', 200);
    tn_tokenizer *t = small_tokenizer();
    bool failed = true;
    for (long n = 0; failed; n++) {
        assert_true(n < MOST);
        tn_ids ids = {0};
        fail_malloc_at(n, 1);
        tn_status status = tn_tokenizer_encode(t, text, strlen(text), true, &ids);
        failed = fail_malloc_end();
        if (status != TN_OK) {
            assert_int_equal(ids.count, 0);
            assert_error(TN_ENOMEM, "");
        } else {
            fail_malloc_at(0, 1);
            assert_null(tn_tokenizer_decode(t, ids.ids, ids.count, NULL));
            assert_true(fail_malloc_end());
            assert_error(TN_ENOMEM, "");
        }
        tn_ids_free(&ids);
    }
    tn_tokenizer_free(t);
}

TEST(saving_without_memory) {
    tn_tokenizer *t = small_tokenizer();
    bool failed = true;
    for (long n = 0; failed; n++) {
        assert_true(n < MOST);
        const char *folder = temp_path("saved");
        temp_remove(folder);
        fail_malloc_at(n, 1);
        tn_status status = tn_tokenizer_save(t, folder);
        failed = fail_malloc_end();
        if (status != TN_OK) {
            assert_error(TN_ENOMEM, "");
            continue;
        }
        tn_tokenizer *again = tn_tokenizer_load(folder);
        assert_non_null(again);
        EXPECT_IDS(again, "hello hello", false, HELLO, SPACE_HELLO);
        tn_tokenizer_free(again);
    }
    tn_tokenizer_free(t);
}
